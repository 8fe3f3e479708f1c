# Sourced by the scripts that work in chroots of Debian releases (test/versions,
# test/package).  The caller sets here, the top of the tree, and limit, how many
# seconds a command in a chroot may take; setup.sh comes first.
#
# Environment: OUTBOX_CHROOTS, OUTBOX_MIRROR, as test/versions says.  Needs root.
# Mounts live in a namespace of their own and vanish with it.

chroots=${OUTBOX_CHROOTS:-/var/tmp/outbox-chroots}
mirror=${OUTBOX_MIRROR:-http://deb.debian.org/debian}

need_chroots()
{
	if [ "$(id -u)" != 0 ]; then
		echo "$1 makes chroots and so needs root." >&2
		exit 2
	fi
	command -v debootstrap > /dev/null || debian_install debootstrap
	mkdir -p "$chroots"
}

# make_chroot NAME: of the release that NAME begins with, up to a dot.  A chroot
# is complete once its marker is there; half of one is made anew.
make_chroot()
{
	local release=${1%%.*} root=$chroots/$1

	if [ -e "$root/etc/outbox-chroot" ]; then
		return 0
	fi
	echo "Making $root"
	rm -rf "${root:?}"
	if ! timeout 1800 debootstrap --variant=minbase "$release" "$root" "$mirror" > "$chroots/$1.log" 2>&1; then
		tail -n 20 "$chroots/$1.log"
		return 1
	fi
	# No package may start a server in there.
	printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
	chmod +x "$root/usr/sbin/policy-rc.d"
	# A mirror that stands still has lists past their date; what this machine
	# was told to put up with holds in there as well.
	apt-config dump | grep -E '^Acquire::Check-(Valid-Until|Date) ' > "$root/etc/apt/apt.conf.d/80outbox" || true
	touch "$root/etc/outbox-chroot"
}

# A chroot's way to the network is this machine's: its name servers, and whom npm
# trusts here.
give_network()
{
	cp -L /etc/resolv.conf "$1/etc/resolv.conf"
	[ ! -f "${NODE_EXTRA_CA_CERTS:-}" ] || cp -L "$NODE_EXTRA_CA_CERTS" "$1/etc/npm-ca.crt"
}

copy_into()
{
	local root=$1

	give_network "$root"
	rm -rf "$root/outbox"
	mkdir "$root/outbox"
	tar -C "$here" -c --exclude-vcs --exclude='*.o' --exclude='*.so' --exclude='*.bc' . | tar -C "$root/outbox" -x
}

# run_in ROOT BELOW COMMAND...: in a chroot.  Where BELOW names a second one,
# of an older release, what only that one has is there as well: its PostgreSQL
# and the libraries it came with.  What is written then goes away with the
# mounts.
#
# /proc and /dev/shm are what servers and tests need.  Not by chroot(8) alone:
# below a changed root ordinary users cannot have namespaces, which some tests
# want, but below a root that was mounted as such they can.
run_in()
{
	mkdir -p "$chroots/both"
	# shellcheck disable=SC2016
	timeout --kill-after=60 "$limit" unshare --mount --pid --fork sh -c '
		both=$1 root=$2 below=$3
		shift 3
		if [ -n "$below" ]; then
			mount -t tmpfs tmpfs "$both" &&
			mkdir "$both/root" "$both/upper" "$both/work" &&
			mount -t overlay -o "lowerdir=$root:$below,upperdir=$both/upper,workdir=$both/work" overlay "$both/root" || exit
			root=$both/root
		else
			mount --bind "$root" "$root" || exit
		fi
		cd "$root" &&
		mkdir -p dev/shm .outside &&
		mount -t proc proc proc &&
		mount -t tmpfs -o mode=1777 tmpfs dev/shm &&
		pivot_root . .outside &&
		umount -l /.outside &&
		exec chroot . env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
			${NODE_EXTRA_CA_CERTS:+NODE_EXTRA_CA_CERTS=/etc/npm-ca.crt} "$@"
	' sh "$chroots/both" "$@"
}
