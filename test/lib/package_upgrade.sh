#!/bin/bash
# In a clean chroot, with packages of two versions in /old and /new: the younger one
# is installed over the older one under a cluster at work, which takes it up with
# a restart and ALTER EXTENSION UPDATE, as doc/upgrading.md says.  Everything that is
# staged meanwhile is delivered.  See test/package --upgrade.
set -euo pipefail
# shellcheck source=test/lib/package_cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/package_cluster.sh"

export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2012
package=$(ls /old/postgresql-*-outbox_*.deb | sort -V | tail -n 1)
major=$(basename "$package" | cut -d- -f2)
younger=$(ls /new/postgresql-"$major"-outbox_*.deb)

install()
{
	apt-get -qq install -y "$1" > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
	dpkg-query -W "postgresql-$major-outbox"
}
apt-get -qq update
install "$package"
start_cluster "$major"
start_receiver received 1000000
old=$(sql -c 'CREATE EXTENSION outbox' -c "SELECT extversion FROM pg_extension WHERE extname = 'outbox'")
sql -c "SELECT outbox.create_handler('shop', '{order.*}', 'http://127.0.0.1:$port/hooks', backoff => '{100 ms}', max_attempts => 100)" > /dev/null

# A producer: one session that goes on, and one for each message beside it.
(
	n=0
	while [ ! -e /tmp/stop ]; do
		n=$((n + 1))
		echo "SELECT 'staged', outbox.stage('order.placed', '{\"order\": $n}');"
		sleep 0.05
	done
) | sql -d postgres > /tmp/staged 2> /tmp/staged.errors &
producer=$!
goes_on()
{
	local before delivered

	before=$(sql -c "SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'")
	for _ in $(seq 300); do
		sql -c "SELECT outbox.stage('order.placed')" > /dev/null
		delivered=$(sql -c "SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'")
		[ "$delivered" -lt $((before + 10)) ] || { echo "goes on: $1 ($delivered delivered)"; return 0; }
		sleep 0.1
	done
	echo "does not go on: $1"
	sql -x -c 'SELECT * FROM outbox.dispatchers' -c 'SELECT * FROM outbox.health()'
	exit 1
}
goes_on "$old"
install "$younger"
goes_on "a younger package, the server as it was"
sql -c 'SELECT pg_terminate_backend(pid) FROM outbox.dispatchers' > /dev/null
goes_on "a dispatcher that started anew meanwhile"
# A restart ends the session.
touch /tmp/stop
wait "$producer"
if [ -s /tmp/staged.errors ]; then cat /tmp/staged.errors; exit 1; fi
pg_ctlcluster "$major" "$cluster" restart
goes_on "restarted: the younger library, the older objects"
sql -c "SELECT r FROM outbox.health(), unnest(reasons) r WHERE r LIKE '%version%'" | tee /tmp/said
grep -q 'run ALTER EXTENSION outbox UPDATE' /tmp/said
sql -c 'ALTER EXTENSION outbox UPDATE'
new=$(sql -c "SELECT extversion FROM pg_extension WHERE extname = 'outbox'")
[ "$new" != "$old" ]
goes_on "updated from $old to $new"
[ -z "$(sql -c "SELECT r FROM outbox.health(), unnest(reasons) r WHERE r LIKE '%version%'")" ]
until [ "$(sql -c "SELECT count(*) FROM outbox.deliveries WHERE state <> 'delivered'")" = 0 ]; do sleep 0.1; done
staged=$(grep -c '^staged' /tmp/staged)
sent=$(grep -o '^{"order": [0-9]*}$' /tmp/received | sort -u | wc -l)
echo "staged by one session: $staged, of them sent: $sent"
[ "$staged" = "$sent" ]
pg_ctlcluster "$major" "$cluster" stop
kill "$receiver" || true
