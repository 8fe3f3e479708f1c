# What the benchmarks share: a server with settings fit for measuring, the C
# receiver, and figures as medians with ratios.
#
# A benchmark prints one line per figure.  Whatever is compared is measured
# in the same run, turn by turn, because machines are noisy; nothing here
# says whether a figure is good.
package OutboxBench;

use strict;
use warnings;

use Exporter 'import';
use File::Basename qw(dirname);
use OutboxCluster;
use POSIX ();
use PsqlSession;
use Test::More ();
use Time::HiRes qw(usleep time);

our @EXPORT = qw(bench_dir bench_cluster start_receiver stop_receiver receiver_counts
  median ratio report runs option backlog drain enable drain_rate curl_rate transport_rate load_figures drain_figures
  slice_rate dispatcher_memory dispatcher_cpu process_cpu dispatcher_descriptors latencies fill_settled);

sub bench_dir { return dirname(__FILE__) . '/../bench'; }

# --name=value on the command line, or a default.
sub option
{
	my ($name, $default) = @_;
	foreach (@ARGV) { return $1 if /^--\Q$name\E=(.*)$/; }
	return $default;
}

# How often each figure is measured.
sub runs { return option('runs', 3); }

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return $sorted[ $#sorted / 2 ] if @sorted % 2;
	return ($sorted[ @sorted / 2 - 1 ] + $sorted[ @sorted / 2 ]) / 2;
}

# The median of the ratios of figures measured in pairs.
sub ratio
{
	my ($a, $b) = @_;
	return median(map { $a->[$_] / $b->[$_] } 0 .. $#$a);
}

sub report
{
	my ($what, $format, @values) = @_;
	# Standard output itself is the test log's.
	my $out = Test::More->builder->output;
	print $out sprintf("%-58s $format\n", $what, @values);
	return;
}

# A running server with the extension in database postgres.  It is durable:
# a benchmark without fsync would say nothing.
sub bench_cluster
{
	my ($name, %options) = @_;
	my $conf = join "\n", $options{conf} // '', $ENV{BENCH_CONF} // '';
	return OutboxCluster->create($name, conf => <<"END");
fsync = on
synchronous_commit = on
shared_buffers = 1GB
max_wal_size = 8GB
checkpoint_timeout = 30min
max_connections = 150
$conf
END
}

my %receivers;

# Start the C receiver; returns its port.
sub start_receiver
{
	my @arguments = @_;
	my $pid = open(my $out, '-|', bench_dir() . '/receiver', @arguments) // die "cannot start the receiver: $!";
	my $line = <$out>;
	die "the receiver did not start\n" unless defined $line && $line =~ /port (\d+)/;
	$receivers{$1} = { pid => $pid, out => $out };
	return $1;
}

# What the receiver has counted so far, as a hash.
sub receiver_counts
{
	my $port = shift;
	kill 'USR1', $receivers{$port}{pid};
	my $line = readline $receivers{$port}{out};
	return { $line =~ /(\w+) (\d+)/g };
}

sub stop_receiver
{
	my $port = shift;
	my $receiver = delete $receivers{$port} // return;
	kill 'TERM', $receiver->{pid};
	my @rest = readline $receiver->{out};
	close $receiver->{out};
	return;
}

END { local $?; stop_receiver($_) foreach keys %receivers; }

# Switch delivery on or off.
sub enable
{
	my ($node, $on) = @_;
	$node->sql("ALTER SYSTEM SET outbox.enabled = $on");
	$node->sql('SELECT pg_reload_conf()');
	$node->wait_until("SELECT state FROM outbox.dispatchers WHERE database = 'postgres'", $on eq 'on' ? 'running' : 'disabled');
	return;
}

# Stage n messages of some bytes while nothing is delivered.
sub backlog
{
	my ($node, $topic, $n, $bytes) = @_;
	enable($node, 'off');
	$node->sql("SELECT count(outbox.stage('$topic', jsonb_build_object('n', g, 'padding', repeat('x', $bytes - 30)))) FROM generate_series(1, $n) AS g");
	$node->sql('CHECKPOINT');
	return;
}

# Deliver what is outstanding (of one handler, if it is named); returns the
# server's time before that.  What else there is to watch is called all along.
sub drain
{
	my ($node, $handler, $watch) = @_;
	my $which = defined $handler ? "WHERE handler_id = (SELECT id FROM outbox.handler WHERE name = '$handler')" : '';
	my $before = $node->sql('SELECT clock_timestamp()');
	enable($node, 'on');
	my $end = time + 900;
	my $idle = 0;
	# One session all along: to start psql each time costs as much as hundreds of deliveries.
	my $session = PsqlSession->new($node);
	# The dispatcher says cheaply whether it is idle.  Asking the table each
	# time would take a processor from it: while an old snapshot is held, that
	# goes through every settled delivery.
	while (1)
	{
		$idle = $session->run("SELECT in_flight FROM outbox.dispatchers WHERE database = 'postgres'") == 0 ? $idle + 1 : 0;
		last if $idle >= 5 && $session->run("SELECT NOT EXISTS (SELECT FROM outbox.delivery $which)") eq 't';
		$idle = 0 if $idle >= 5;
		die "the backlog did not drain\n" if time > $end;
		$watch->() if $watch;
		usleep(50_000);
	}
	$session->close;
	return $before;
}

# Deliveries a second among those settled after a time, from the first
# settlement to the last one: all, or a slice by order of settlement.
sub slice_rate
{
	my ($node, $before, $offset, $limit) = @_;
	$limit //= 'ALL';
	return $node->sql(<<"END");
SELECT (count(*) FILTER (WHERE settled_at > first) / extract(epoch FROM max(settled_at) - first))::bigint
FROM (SELECT settled_at, min(settled_at) OVER () AS first
	FROM (SELECT settled_at FROM outbox.receipt WHERE settled_at > '$before' AND state = 3
		ORDER BY settled_at OFFSET ${\ ($offset // 0)} LIMIT $limit) AS s) AS d GROUP BY first
END
}

# Drain and return deliveries a second.
sub drain_rate
{
	my ($node) = @_;
	return slice_rate($node, drain($node));
}

sub _proc
{
	my ($node, $file, $pattern) = @_;
	my $pid = $node->dispatcher_pid;
	open(my $in, '<', "/proc/$pid/$file") or die "cannot read /proc/$pid/$file: $!\n";
	local $/;
	my $text = <$in>;
	return $text =~ $pattern ? $1 : die "nothing like $pattern in /proc/$pid/$file\n";
}

# The dispatcher's own memory in kB: what it shares with others does not count.
sub dispatcher_memory { return _proc($_[0], 'status', qr/^RssAnon:\s+(\d+)/m); }

# The processor time that a process has used, in clock ticks.
sub process_cpu
{
	my $pid = shift;
	open(my $in, '<', "/proc/$pid/stat") or die "cannot read /proc/$pid/stat: $!\n";
	my @fields = split ' ', (readline $in) =~ s/^\d+ \(.*\) //r;
	return $fields[11] + $fields[12];
}

sub dispatcher_cpu { return process_cpu($_[0]->dispatcher_pid); }

sub dispatcher_descriptors
{
	my @descriptors = glob '/proc/' . $_[0]->dispatcher_pid . '/fd/*';
	return scalar @descriptors;
}

# Latencies of n messages to a receiver with a record: a hash of microseconds.
sub latencies
{
	my ($node, $port, $record, $n) = @_;
	my $conninfo = $node->connstr('postgres');
	my $out = qx(${\ bench_dir()}/latency "$conninfo" $port $record $n);
	die "latency said: $out\n" unless $out =~ /^message (-?\d+) (-?\d+) bare (-?\d+) (-?\d+) longest (-?\d+)$/;
	return { p50 => $1, p99 => $2, bare50 => $3, bare99 => $4, longest => $5 };
}

# Put n delivered messages of a handler into the tables, as if they had been staged long ago.
sub fill_settled
{
	my ($node, $handler, $n) = @_;
	$node->sql(<<"END");
INSERT INTO outbox.message (id, staged_at, topic, payload)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, now() - interval '1 day', 'bench.message.sent', '{"old": true}'
FROM generate_series(1, $n) AS g;
INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, http_status)
SELECT m.id, m.staged_at, h.id, 1, 0, 3, 204
FROM outbox.message m, outbox.handler h WHERE h.name = '$handler' AND m.payload ? 'old';
ANALYZE outbox.message, outbox.delivery, outbox.receipt;
END
	return;
}

# Requests a second of the bare libcurl loop.
sub curl_rate { return _load_rate('curl_loop', @_); }

# Requests a second of the same load through one transport, without a database.
sub transport_rate
{
	my ($transport, @load) = @_;
	return _load_rate("transport_loop --transport $transport", @load);
}

sub _load_rate
{
	my ($command, $port, $n, $concurrency, $bytes) = @_;
	return load_figures($command, "http://127.0.0.1:$port/", $n, $concurrency, $bytes)->{rate};
}

# The figures of a program that sends so many requests: rate, and cpu_us, the
# processor time that it took for one.  Dies where one fails, unless told that
# they will.
sub load_figures
{
	my ($command, $url, $n, $concurrency, $bytes, $options, $may_fail) = @_;
	my $out = qx(${\ bench_dir()}/$command --url $url --requests $n --concurrency $concurrency --body-size $bytes ${\ ($options // '')});
	die "$command said: $out\n" unless $out =~ /failed (\d+) seconds \S+ rate (\d+) cpu_us (\S+)/ && ($may_fail || $1 == 0);
	return { rate => $2, cpu_us => $3 };
}

# The same of a drain of so many deliveries: of the dispatcher's process alone.
sub drain_figures
{
	my ($node, $n) = @_;
	my $before = dispatcher_cpu($node);
	my $rate = drain_rate($node);
	return { rate => $rate, cpu_us => (dispatcher_cpu($node) - $before) * 1e6 / POSIX::sysconf(POSIX::_SC_CLK_TCK()) / $n };
}

1;
