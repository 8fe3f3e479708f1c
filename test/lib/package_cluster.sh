# Sourced by what tries an installed package in a clean chroot, as root: a
# cluster that preloads outbox, and a message that goes from a committed
# transaction to a receiver.

# The cluster of PostgreSQL $1 that Debian's packages make, or one like it, with
# outbox as doc/installing.md says; its name goes into $cluster, its
# configuration's folder into $conf.
start_cluster()
{
	pg_lsclusters -h | grep -q . || pg_createcluster "$1" main > /dev/null
	conf=$(find "/etc/postgresql/$1" -maxdepth 1 -mindepth 1 | head -n 1)
	cluster=$(basename "$conf")
	mkdir -p "$conf/conf.d"
	echo "shared_preload_libraries = 'outbox'" > "$conf/conf.d/outbox.conf"
	pg_ctlcluster "$1" "$cluster" start
}

as_postgres()
{
	setpriv --reuid=postgres --regid=postgres --init-groups "$@"
}

sql()
{
	as_postgres psql -XAtq -v ON_ERROR_STOP=1 "$@"
}

# A receiver that answers requests with 204 until $2 have come, or for a minute
# without one; what they were goes into /tmp/$1, its port into $port.
start_receiver()
{
	rm -f /tmp/receiver.port
	perl -MIO::Socket::INET -e '
		my $left = shift;
		my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 100) or die $!;
		open my $port, ">", "/tmp/receiver.port.new" or die $!; print $port $server->sockport; close $port;
		rename "/tmp/receiver.port.new", "/tmp/receiver.port";
		$| = 1;
		while ($left-- > 0)
		{
			alarm 60;
			my $client = $server->accept;
			my ($head, $length) = ("", 0);
			while (<$client>) { $head .= $_; $length = $1 if /^content-length: *(\d+)/i; last if /^\r?\n$/; }
			read $client, my $body, $length;
			print $client "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"; close $client;
			print $head, $body, "\n";
		}' "$2" > "/tmp/$1" &
	receiver=$!
	until [ -e /tmp/receiver.port ]; do sleep 0.1; done
	port=$(cat /tmp/receiver.port)
}

show_a_delivery()
{
	start_receiver received 1
	sql -c 'CREATE EXTENSION outbox' -c "SELECT outbox.create_handler('shop', '{order.*}', 'http://127.0.0.1:$port/hooks')" \
		-c "BEGIN" -c "SELECT outbox.stage('order.placed', '{\"order\": 7}')" -c 'COMMIT' > /dev/null
	wait "$receiver"
	cat /tmp/received
	grep -q '^{"order": 7}$' /tmp/received
	until [ "$(sql -c 'SELECT state FROM outbox.deliveries')" = delivered ]; do sleep 0.1; done
	sql -c 'SELECT handler, topic, state, attempts FROM outbox.deliveries' -c 'DROP EXTENSION outbox'
}
