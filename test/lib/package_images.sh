#!/bin/bash
# Build the container images by buildah, on an image that stands for the official
# one, and run them; see test/package --images.  Needs root; starts no service
# and pulls nothing.
#
# The stand-in has what the official image has and the builds rely on: Debian's
# packages of PostgreSQL, its user, PG_MAJOR.
set -euo pipefail

root=$1				# a chroot of the release, clean
tree=$2
major=$3
store=$(mktemp -d /var/tmp/outbox-images.XXXXXX)
trap 'buildah --root "$store/root" --runroot "$store/run" rm --all > /dev/null 2>&1 || true; rm -rf "$store"' EXIT

b()
{
	local command=$1
	shift
	buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs "$command" "$@"
}

run()
{
	b run --isolation chroot "$@"
}

echo "A stand-in for the official image"
base=$(b from scratch)
b add --quiet "$base" "$root" / > /dev/null
run "$base" sh -c "export DEBIAN_FRONTEND=noninteractive; apt-get -qq update && apt-get -qq install -y --no-install-recommends postgresql-common > /dev/null &&
	sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf &&
	apt-get -qq install -y --no-install-recommends postgresql-$major > /dev/null" 2>&1 | grep -v '^debconf\|^invoke-rc' || true
b config --env PG_MAJOR="$major" --env DEBIAN_FRONTEND=noninteractive --env "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/$major/bin" "$base"
b commit --quiet --rm "$base" localhost/postgres > /dev/null

echo "Containerfile"
b bud --isolation chroot --build-arg BASE=localhost/postgres -t localhost/outbox -f "$tree/Containerfile" "$tree" > "$store/log" 2>&1 || { tail -n 40 "$store/log"; exit 1; }
made=$(b from localhost/outbox)
run "$made" -- outbox-demo > "$store/demo" 2>&1 || { cat "$store/demo"; exit 1; }
grep -A 12 'POST /hooks' "$store/demo" | head -n 12
grep -q 'delivered' "$store/demo"
b rm "$made" > /dev/null

echo "Containerfile.extension"
b bud --isolation chroot --build-arg BASE=localhost/postgres -t localhost/extension -f "$tree/packaging/container/Containerfile.extension" "$tree" > "$store/log" 2>&1 || { tail -n 40 "$store/log"; exit 1; }
made=$(b from localhost/extension)
content=$(b mount "$made")
(cd "$content" && find . -type f | sort | sed 's/^/  /')
# Into an unchanged image, beside the server.
server=$(b from localhost/postgres)
b copy --quiet "$server" "$content" /opt/outbox > /dev/null
b umount "$made" > /dev/null
if [ "$major" -ge 18 ]; then
	run --user postgres "$server" -- bash -eu -c '
		folder=$(mktemp -d)
		initdb -D "$folder/data" > /dev/null
		cat >> "$folder/data/postgresql.conf" <<-END
			shared_preload_libraries = '\''outbox'\''
			extension_control_path = '\''\$system:/opt/outbox/share'\''
			dynamic_library_path = '\''\$libdir:/opt/outbox/lib'\''
			listen_addresses = '\'''\''
			unix_socket_directories = '\''$folder'\''
		END
		trap "pg_ctl -D $folder/data -m immediate stop > /dev/null" EXIT
		LD_LIBRARY_PATH=/opt/outbox/system pg_ctl -w -D "$folder/data" -l "$folder/log" start > /dev/null || { cat "$folder/log"; exit 1; }
		psql -h "$folder" -XAtq -v ON_ERROR_STOP=1 -d postgres -c "CREATE EXTENSION outbox" -c "SELECT outbox.create_handler('\''h'\'', '\''{*}'\'', '\''http://127.0.0.1:9/'\'')" -c "SELECT outbox.stage('\''a'\'')" > /dev/null
		# What it says when nothing listens there is libcurl: its library was found.
		for i in $(seq 600); do
			said=$(psql -h "$folder" -XAtq -d postgres -c "SELECT code || '\'' '\'' || error FROM outbox.deliveries WHERE attempts > 0")
			[ -z "$said" ] || break
			sleep 0.1
		done
		echo "an attempt said: $said"
		[ -n "$said" ]'
else
	echo "PostgreSQL $major finds no extension outside of its folders: 18 does"
fi
