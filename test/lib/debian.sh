# Sourced by the scripts that set up a Debian machine: which packages outbox
# needs there, and which PostgreSQL to use.  Nothing is installed that is
# there already, and nothing at all when all of it is.

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

# Install those of the named packages that are missing.
debian_install()
{
	local package
	local -a missing=()

	command -v dpkg-query > /dev/null || return 0
	for package in "$@"; do
		if [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null)" != installed ]; then
			missing+=("$package")
		fi
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	echo "Installing ${missing[*]}"
	if ! DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" > /tmp/outbox-apt.$$ 2>&1; then
		cat /tmp/outbox-apt.$$
		rm -f /tmp/outbox-apt.$$
		return 1
	fi
	rm -f /tmp/outbox-apt.$$
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
	debian_install build-essential pkg-config libcurl4-openssl-dev libssl-dev
	if [ -z "${PG_CONFIG:-}" ]; then
		local major
		major=$(debian_pg_major)
		debian_install "postgresql-$major" "postgresql-server-dev-$major"
	fi
}

debian_install_for_tests()
{
	command -v apt-get > /dev/null || return 0
	debian_install_for_build
	debian_install perl libipc-run-perl openssl
	if [ -z "${PG_CONFIG:-}" ]; then
		debian_install "postgresql-$(debian_pg_major)-pgtap"
	fi
}
