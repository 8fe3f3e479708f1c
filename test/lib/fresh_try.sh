#!/bin/bash
# On a bare Debian machine, as root: the two commands of README.md's quick start,
# as they stand there, and what they leave behind.  What is named goes to the
# second one.  See test/fresh; in a bare container this runs by itself.
#
# The last line says what the two have shown.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
log=$(mktemp /run/outbox-fresh.XXXXXX)
trap 'rm -f "$log" "$log".*' EXIT

fail()
{
	echo "FAILED: $*"
	exit 1
}

# The commands of the quick start's first block of shell, without their comments.
readme_commands()
{
	awk '/^## / { wanted = /^## Quick start/; next }
		wanted && /^```/ { if (inside) exit; inside = /^```sh$/; next }
		inside { sub(/[ \t]+#.*/, ""); if (NF) print }' "$here/README.md"
}

# Nothing may be there that the commands are to bring.
need_bare_machine()
{
	local what

	for what in cc gcc make psql postgres pg_config; do
		! command -v "$what" > /dev/null || fail "this machine is not bare: it has $what"
	done
	[ ! -e /usr/lib/postgresql ] || fail "this machine is not bare: PostgreSQL was installed on it"
}

# Files where no package puts any, one a line, with what shows a change of one.
files_of_nobody()
{
	find /tmp /var/tmp /dev/shm /root /home /srv /opt "$here" -path "$here/.git" -prune -o \( -type d -printf '%p/\n' -o -printf '%p %s %T@ %m\n' \) | sort
	{ find /etc /var/lib/postgresql -path '*outbox*' 2> /dev/null || true; } | sort
}

# Processes that are none of ours, in $others; without a process of its own.
declare -A before=()
find_others()
{
	local process id name state

	others=
	for process in /proc/[0-9]*; do
		id=${process#/proc/}
		[ "$id" = $$ ] || [ -n "${before[$id]:-}" ] && continue
		read -r name < "$process/comm" || continue
		state=$(< "$process/stat") || continue
		state=${state##*) }
		# What has ended, and only waits to be looked at, is not running.
		[ "${state%% *}" = Z ] || others+="$id ($name) "
	done 2> /dev/null
}

# try COMMAND: runs it as it is, shown and in $log, and looks after it.
try()
{
	local command=$1 pid follower started=$SECONDS status=0 patience

	echo
	echo "# $command"
	: > "$log"
	(cd "$here" && exec bash -c "$command") > "$log" 2>&1 < /dev/null &
	pid=$!
	tail -n +1 -f --pid="$pid" "$log" &
	follower=$!
	wait "$pid" || status=$?
	wait "$follower"
	[ "$status" = 0 ] || fail "\"$command\" ended with $status"
	echo "(that took $((SECONDS - started)) s)"

	# What was told to end may still be at it.
	for ((patience = 100; patience > 0; patience--)); do
		find_others
		[ -n "$others" ] || break
		sleep 0.1
	done
	[ -z "$others" ] || fail "\"$command\" has left running: $others"
	files_of_nobody > "$log.after"
	diff "$log.files" "$log.after" > "$log.diff" || { cat "$log.diff"; fail "\"$command\" has left files, or changed some"; }
	if command -v pg_lsclusters > /dev/null && [ -n "$(pg_lsclusters -h)" ]; then
		fail "\"$command\" has made a cluster: $(pg_lsclusters -h)"
	fi
}

# shows PATTERN...: the command has said all of these.
shows()
{
	local pattern

	for pattern in "$@"; do
		grep -qE "$pattern" "$log" || fail "it has not shown: $pattern"
	done
}

mapfile -t commands < <(readme_commands)
[ ${#commands[@]} = 2 ] || fail "README.md's quick start has ${#commands[@]} commands, not two: ${commands[*]}"
need_bare_machine
for process in /proc/[0-9]*; do
	before[${process#/proc/}]=yes
done
files_of_nobody > "$log.files"
echo "$(. /etc/os-release && echo "$PRETTY_NAME"): ${commands[0]}, ${commands[1]}"

try "${commands[0]}"
shows '^COMMIT;$' '^ +POST /hooks/billing$' '^ +outbox-topic: billing\.invoice\.paid$' '^ +webhook-id: [0-9a-f-]{36}$' \
	'^ +\{"amount": 99.50, "invoice": 42\}$' '^ *accounting \| billing\.invoice\.paid \| delivered \| +1 '

second=${commands[1]}
[ $# -eq 0 ] || second+=$(printf ' %q' "$@")
try "$second"
counted=$(tail -n 1 "$log")
[[ $counted =~ ^[1-9][0-9]*\ passed,\ 0\ failed$ ]] || fail "\"$second\" says: $counted"
server=$(sed -n 's/^PostgreSQL: \(PostgreSQL [0-9.]*\).*/\1/p' "$log")
echo
echo "$server, a message was delivered, $counted"
