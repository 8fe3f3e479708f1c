#!/bin/bash
# In a clean chroot, with packages in /outbox: one is installed as an
# administrator would, and a message goes from a committed transaction to a
# receiver; then the package's own tests, and its removal.  See test/package.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
package=$(ls /outbox/postgresql-*-outbox_*.deb | sort -V | tail -n 1)
major=$(basename "$package" | cut -d- -f2)

apt-get -qq update
apt-get -qq install -y "$package" > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
ls /usr/lib/postgresql/"$major"/lib/outbox.so /usr/share/postgresql/"$major"/extension/outbox.control > /dev/null

pg_lsclusters -h | grep -q . || pg_createcluster "$major" main > /dev/null
conf=$(find /etc/postgresql/"$major" -maxdepth 1 -mindepth 1 | head -n 1)
cluster=$(basename "$conf")
# As README.md says.
mkdir -p "$conf/conf.d"
echo "shared_preload_libraries = 'outbox'" > "$conf/conf.d/outbox.conf"
pg_ctlcluster "$major" "$cluster" start

# A receiver of one request.
perl -MIO::Socket::INET -e '
	my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 1) or die $!;
	open my $port, ">", "/tmp/receiver.port.new" or die $!; print $port $server->sockport; close $port;
	rename "/tmp/receiver.port.new", "/tmp/receiver.port";
	alarm 60;
	my $client = $server->accept;
	my ($head, $length) = ("", 0);
	while (<$client>) { $head .= $_; $length = $1 if /^content-length: *(\d+)/i; last if /^\r?\n$/; }
	read $client, my $body, $length;
	print $client "HTTP/1.1 204 No Content\r\n\r\n"; close $client;
	print $head, $body, "\n"' > /tmp/received &
receiver=$!
until [ -e /tmp/receiver.port ]; do sleep 0.1; done

sql()
{
	setpriv --reuid=postgres --regid=postgres --init-groups psql -XAtq -v ON_ERROR_STOP=1 "$@"
}
sql -c 'CREATE EXTENSION outbox' -c "SELECT outbox.create_handler('shop', '{order.*}', 'http://127.0.0.1:$(cat /tmp/receiver.port)/hooks')" \
	-c "BEGIN" -c "SELECT outbox.stage('order.placed', '{\"order\": 7}')" -c 'COMMIT' > /dev/null
wait "$receiver"
cat /tmp/received
grep -q '^{"order": 7}$' /tmp/received
until [ "$(sql -c 'SELECT state FROM outbox.deliveries')" = delivered ]; do sleep 0.1; done
sql -c 'SELECT handler, topic, state, attempts FROM outbox.deliveries' -c 'DROP EXTENSION outbox'
pg_ctlcluster "$major" "$cluster" stop

apt-get -qq install -y --no-install-recommends postgresql-server-dev-all make > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
cp -a /outbox /tmp/tests
chown -R postgres: /tmp/tests
(cd /tmp/tests && setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp/tests debian/tests/installcheck) > /tmp/tests.log 2>&1 || { tail -n 40 /tmp/tests.log; exit 1; }
grep -E 'tests passed' /tmp/tests.log

apt-get -qq purge -y "postgresql-$major-outbox" > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
# Clusters stay, as they do when PostgreSQL itself is purged, and what outbox counted in them.
left=$(find / -xdev \( -path /outbox -o -path /var/lib/postgresql -o -path /tmp -o -path /proc \) -prune -o -name '*outbox*' -print | grep -v "^$conf\|/var/tmp\|^/etc/outbox-chroot\|80outbox" || true)
if [ -n "$left" ]; then
	echo "The package has left: $left"
	exit 1
fi
