#!/bin/bash
# In a clean chroot, with packages in /outbox: one is installed as an
# administrator would, and a message goes from a committed transaction to a
# receiver; then the package's own tests, and its removal.  See test/package.
set -euo pipefail
# shellcheck source=test/lib/package_cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/package_cluster.sh"

export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2012
package=$(ls /outbox/postgresql-*-outbox_*.deb | sort -V | tail -n 1)
major=$(basename "$package" | cut -d- -f2)

apt-get -qq update
apt-get -qq install -y "$package" > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
ls /usr/lib/postgresql/"$major"/lib/outbox.so /usr/share/postgresql/"$major"/extension/outbox.control > /dev/null

start_cluster "$major"
show_a_delivery
pg_ctlcluster "$major" "$cluster" stop

apt-get -qq install -y --no-install-recommends postgresql-server-dev-all make > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
cp -a /outbox /tmp/tests
chown -R postgres: /tmp/tests
(cd /tmp/tests && as_postgres env HOME=/tmp/tests debian/tests/installcheck) > /tmp/tests.log 2>&1 || { tail -n 40 /tmp/tests.log; exit 1; }
grep -E 'tests passed' /tmp/tests.log

apt-get -qq purge -y "postgresql-$major-outbox" > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
# Clusters stay, as they do when PostgreSQL itself is purged, and what outbox counted in them.
left=$(find / -xdev \( -path /outbox -o -path /var/lib/postgresql -o -path /tmp -o -path /proc \) -prune -o -name '*outbox*' -print | grep -v "^$conf\|/var/tmp\|^/etc/outbox-chroot\|80outbox" || true)
if [ -n "$left" ]; then
	echo "The package has left: $left"
	exit 1
fi
