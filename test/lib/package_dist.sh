#!/bin/bash
# In a clean chroot, with nothing of outbox but the archives that make dist has
# made, in /dist: PGXN's client builds and installs the one, its tests pass, and a
# message is delivered; the other has the same files.  See test/package --dist.
set -euo pipefail
# shellcheck source=test/lib/package_cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/package_cluster.sh"

export DEBIAN_FRONTEND=noninteractive
zip=$(ls /dist/outbox-*.zip)
version=$(basename "$zip" .zip)

apt-get -qq update
major=$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p')
# What doc/installing.md says, and PGXN's client.
apt-get -qq install -y --no-install-recommends build-essential pkg-config "postgresql-$major" "postgresql-server-dev-$major" libcurl4-openssl-dev libssl-dev zlib1g-dev \
	pgxnclient unzip > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }

mkdir /tmp/zip /tmp/tar
unzip -q "$zip" -d /tmp/zip
tar -C /tmp/tar -xzf "${zip%.zip}.tar.gz"
diff -r /tmp/zip /tmp/tar
[ "$(ls /tmp/zip)" = "$version" ] && [ -f "/tmp/zip/$version/META.json" ]
[ ! -e "/tmp/zip/$version/.git" ]

export MAKEFLAGS="with_llvm=no -j2"
config=/usr/lib/postgresql/$major/bin/pg_config
pgxn install --pg_config "$config" "$zip" > /tmp/pgxn.log 2>&1 || { tail -n 60 /tmp/pgxn.log; exit 1; }
grep -c ' -c -o ' /tmp/pgxn.log | sed 's/$/ files were compiled/'
start_cluster "$major"
# As on a server at work that preloads the library: the regress tests.
chmod 755 /dist
(cd /tmp && as_postgres env HOME=/tmp PGUSER=postgres MAKEFLAGS=with_llvm=no pgxn check --pg_config "$config" "$zip") > /tmp/check.log 2>&1 || { tail -n 60 /tmp/check.log; exit 1; }
grep -E 'tests passed' /tmp/check.log
show_a_delivery
pg_ctlcluster "$major" "$cluster" stop
pgxn uninstall --pg_config "$config" "$zip" > /tmp/pgxn.log 2>&1 || { tail -n 60 /tmp/pgxn.log; exit 1; }
left=$(find /usr/lib/postgresql /usr/share/postgresql -name '*outbox*')
[ -z "$left" ] || { echo "Left: $left"; exit 1; }
