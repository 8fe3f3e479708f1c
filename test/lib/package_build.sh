#!/bin/bash
# In a chroot, with the tree in /outbox: packages into /var/tmp/outbox-build, and
# what lintian says of them; with the argument nocheck without their tests.  See
# test/package.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
build=/var/tmp/outbox-build
version=$(sed -n 's/^outbox (\([^-]*\)-.*/\1/p' /outbox/debian/changelog | head -n 1)

apt-get -qq update
apt-get -qq install -y --no-install-recommends dpkg-dev devscripts equivs lintian fakeroot > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
rm -rf "$build"
mkdir -p "$build"
cp -a /outbox "$build/outbox-$version"
cd "$build"
tar -czf "outbox_$version.orig.tar.gz" --exclude=debian "outbox-$version"
cd "outbox-$version"
# As the release has them: versions of PostgreSQL, and the packages made for them.
apt-get -qq install -y --no-install-recommends postgresql-server-dev-all postgresql-common > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
pg_buildext updatecontrol
apt-get -qq build-dep -y --no-install-recommends . > /tmp/install.log 2>&1 || { cat /tmp/install.log; exit 1; }
id builder > /dev/null 2>&1 || useradd --create-home builder
chown -R builder: "$build"
setpriv --reuid=builder --regid=builder --clear-groups env HOME=/home/builder DEB_BUILD_OPTIONS="parallel=$(nproc) ${1:-}" \
	dpkg-buildpackage -us -uc > "$build/log" 2>&1 || { tail -n 60 "$build/log"; exit 1; }
grep -E '^(ok|test|All) .*|tests passed' "$build/log" || true
# Until there is a release there is neither a bug to close nor an address to write to.
lintian --profile debian --allow-root --fail-on error,warning --display-info --suppress-tags bad-distribution-in-changes-file,initial-upload-closes-no-bugs,unreleased-changes,bogus-mail-host,bogus-mail-host-in-debian-changelog "$build"/outbox_*.changes
