# Sourced by the scripts that set outbox up on a machine (test/run, the
# quick start): packages on Debian, which PostgreSQL to use, a work folder
# that goes away again, a build in a copy of the tree.
#
# The caller sets here, the top of the tree.  Nothing is installed that is
# there already.  As root, whatever runs runs as an ordinary user.

# Debian's own PostgreSQL version, or the newest one that is installed.
debian_pg_major()
{
	local newest
	newest=$(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -printf '%f\n' 2> /dev/null | sort -n | tail -n 1)
	if [ -z "$newest" ]; then
		newest=$(apt-cache depends postgresql 2> /dev/null | sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -n 1)
	fi
	echo "${newest:-15}"
}

# The pg_config to build with: PG_CONFIG if set, else Debian's.
debian_pg_config()
{
	local config=${PG_CONFIG:-/usr/lib/postgresql/$(debian_pg_major)/bin/pg_config}

	if ! [ -x "$(command -v "$config" || true)" ]; then
		echo "No pg_config at $config; set PG_CONFIG, or run as root on Debian." >&2
		return 1
	fi
	command -v "$config"
}

# Do the files of all these packages lie in their places, configured or not?
debian_unpacked()
{
	local package

	for package in "$@"; do
		case $(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null) in
			unpacked | half-configured | triggers-* | installed) ;;
			*) return 1 ;;
		esac
	done
}

# Install those of the named packages that are missing.  A release that is in
# the making may have some that cannot be configured in a chroot: programs
# and libraries work all the same, so that is only said.
debian_install()
{
	local package log
	local -a missing=()

	command -v dpkg-query > /dev/null || return 0
	for package in "$@"; do
		if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null)" != installed ]; then
			missing+=("$package")
		fi
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	echo "Installing ${missing[*]}"
	log=$(mktemp)
	if ! DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" > "$log" 2>&1; then
		cat "$log"
		rm -f "$log"
		debian_unpacked "${missing[@]}" || return 1
		echo "Not all of it is configured; going on with what is unpacked"
		return 0
	fi
	rm -f "$log"
}

# Package lists of a bare machine are empty or old.
debian_refresh_lists()
{
	if ! apt-cache show postgresql-common > /dev/null 2>&1; then
		apt-get -qq update
	fi
}

# What the build needs.  A PostgreSQL named by PG_CONFIG is taken as it is.
debian_install_for_build()
{
	command -v apt-get > /dev/null || return 0
	debian_refresh_lists
	debian_install build-essential pkg-config libcurl4-openssl-dev libssl-dev zlib1g-dev
	if [ -z "${PG_CONFIG:-}" ]; then
		debian_install_server "$(debian_pg_major)"
	fi
}

# PostgreSQL's programs without the cluster that Debian's package creates and
# starts along with them: what comes after brings servers of its own.
debian_install_server()
{
	local major=$1
	local settings=/etc/postgresql-common/createcluster.conf
	local status=0

	if debian_unpacked "postgresql-$major"; then
		debian_install "postgresql-$major" "postgresql-server-dev-$major"
		return
	fi
	debian_install postgresql-common
	cp -p "$settings" "$settings.before-outbox"
	echo 'create_main_cluster = false' >> "$settings"
	debian_install "postgresql-$major" "postgresql-server-dev-$major" || status=$?
	mv "$settings.before-outbox" "$settings"
	echo "No cluster was created: \"pg_createcluster $major main --start\" makes the one that Debian would have"
	return "$status"
}

# Programs of packages that start a service when they are installed, without the service.
debian_install_silent()
{
	local policy=/usr/sbin/policy-rc.d
	local own=
	local status=0

	if ! [ -e "$policy" ]; then
		own=$policy
		printf '#!/bin/sh\nexit 101\n' > "$policy"
		chmod +x "$policy"
	fi
	debian_install "$@" || status=$?
	[ -z "$own" ] || rm -f "$own"
	return "$status"
}

debian_install_for_tests()
{
	command -v apt-get > /dev/null || return 0
	debian_install_for_build
	debian_install perl libipc-run-perl openssl python3-psycopg python3-psycopg2 python3-asyncpg python3-sqlalchemy python3-greenlet nodejs iproute2
	debian_install python3-django alembic || true
	debian_install_silent pgbouncer || true
	# Debian's npm does not go with a nodejs from elsewhere, which brings its own.
	command -v npm > /dev/null || debian_install npm || true
	command -v promtool > /dev/null || debian_install_silent prometheus || true
	if command -v javac > /dev/null; then
		debian_install libpostgresql-jdbc-java || true
	fi
	if [ -z "${PG_CONFIG:-}" ]; then
		debian_install "postgresql-$(debian_pg_major)-pgtap"
		# Not every version is packaged everywhere; the test says when it is skipped.
		debian_install "postgresql-$(debian_pg_major)-pgaudit" || true
		debian_install "postgresql-$(debian_pg_major)-repack" || true
	fi
}

# What the suite npm needs besides.  Go is large, and one test's.
debian_install_for_npm()
{
	command -v apt-get > /dev/null || return 0
	debian_install golang-go golang-github-lib-pq-dev || true
}

# What the suite ha needs besides.  The services of these packages are not
# started: the tests run their programs themselves.
debian_install_for_ha()
{
	command -v apt-get > /dev/null || return 0
	debian_install_silent patroni etcd-server pgbackrest || true
}

# Who builds and runs servers: as_user COMMAND.  Not by runuser or su, which
# stay in between as a parent: when all processes are stopped and continued,
# as when a machine is frozen, they stop once more, for good.
TEST_USER=${TEST_USER:-postgres}
as_user()
{
	if [ "$(id -u)" = 0 ]; then
		setpriv --reuid="$TEST_USER" --regid="$(id -g "$TEST_USER")" --init-groups -- "$@"
	else
		"$@"
	fi
}

give_to_user()
{
	[ "$(id -u)" != 0 ] || chown -R "$TEST_USER:" "$@"
}

# A work folder in $work, removed at exit unless $keep is set.  Servers whose
# data directory lies in it are ours: an interrupted run leaves none behind.
make_work_folder()
{
	if [ "$(id -u)" = 0 ] && ! id "$TEST_USER" > /dev/null 2>&1; then
		useradd --system "$TEST_USER"
	fi
	work=$(mktemp -d "${TMPDIR:-/tmp}/outbox-$1.XXXXXX")
	give_to_user "$work"
	trap remove_work_folder EXIT
	trap 'exit 130' INT TERM
}

remove_work_folder()
{
	local pidfile pid

	while read -r pidfile; do
		pid=$(head -n 1 "$pidfile" 2> /dev/null || true)
		[ -n "$pid" ] && kill -QUIT "$pid" 2> /dev/null || true
	done < <(find "$work" -name postmaster.pid 2> /dev/null)
	if [ -n "${keep:-}" ]; then
		echo "Work folder kept: $work"
	else
		rm -rf "$work"
	fi
}

# A copy of the tree in $work/tree, without what a build left in it.
copy_tree()
{
	mkdir "$work/tree"
	tar -C "$here" -c --exclude-vcs --exclude='*.o' --exclude='*.so' --exclude='*.bc' \
		--exclude=./tmp_check --exclude=./results --exclude=./build . | tar -C "$work/tree" -x
	give_to_user "$work/tree"
}

# Build the copy and install it into the PostgreSQL of PG_CONFIG.
build_and_install()
{
	local settings=(PG_CONFIG="$PG_CONFIG" with_llvm=no WERROR=1)

	# A dot for each file that is compiled.
	if ! as_user make -C "$work/tree" -j2 "${settings[@]}" 2>&1 | tee "$work/build.log" | awk '/ -c / { printf "."; fflush() } END { print "" }'; then
		cat "$work/build.log"
		echo "The build failed."
		return 1
	fi
	if ! make -C "$work/tree" "${settings[@]}" install > "$work/install.log" 2>&1; then
		cat "$work/install.log"
		echo "The installation failed; run as root, or set PG_CONFIG to a PostgreSQL whose folders you may write to."
		return 1
	fi
	give_to_user "$work/tree"
}
