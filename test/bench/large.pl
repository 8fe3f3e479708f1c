# Large messages: how much memory the dispatcher takes for them at most, and
# how long small messages of another handler take meanwhile, from commit to
# the arrival of the request.
#
# Options: --messages=N (1000 of 1 MB), --small=N (small ones measured beside
# each kind, 300), --delay-ms=N (what the receiver of the large ones takes, 20),
# --handlers=N (with slow receivers, which have 20 requests out each, 25),
# --max-memory=TEXT (outbox.max_memory, its default)
use strict;
use warnings;

use OutboxBench;
use Time::HiRes qw(usleep);

my $messages = option('messages', 1000);
my $small = option('small', 300);
my $max_memory = option('max-memory', '');
my $node = bench_cluster('large', conf => "outbox.max_payload_size = '256MB'" . ($max_memory && "\noutbox.max_memory = '$max_memory'"));
my $record = $node->basedir . '/record';
open(my $create, '>', $record) or die $!;
close $create;
my $small_port = start_receiver('--record', $record);
my $large_port = start_receiver('--delay-ms', option('delay-ms', 20));
$node->handler('small', ['bench.*'], "http://127.0.0.1:$small_port/");
$node->handler('large', ['large.*'], "http://127.0.0.1:$large_port/", concurrency => 20, timeout => '60 s');
$node->handler('copy', ['large.*'], "http://127.0.0.1:$large_port/", concurrency => 20, timeout => '60 s', format => 'envelope');

# An array of objects that does not compress to nothing, as JSON text of about so many MB.
$node->sql(<<'END');
CREATE FUNCTION public.payload(mb int) RETURNS jsonb LANGUAGE sql AS $$
SELECT jsonb_agg(jsonb_build_object('number', g, 'amount', g * 1.07, 'text', md5(g::text) || md5((g + 1)::text)))
FROM generate_series(1, mb * 8900) AS g $$
END

# Samples the dispatcher's own memory until it is told to stop; returns the most there was, in MB.
sub start_sampling
{
	my $pid = $node->dispatcher_pid;
	pipe(my $read, my $write) or die $!;
	my $child = fork() // die $!;
	return [ $child, $read, close $write ] if $child;
	my ($most, $over) = (0, 0);
	$SIG{TERM} = sub { $over = 1 };
	until ($over)
	{
		open(my $in, '<', "/proc/$pid/status") or last;
		while (<$in>) { $most = $1 if /^RssAnon:\s+(\d+)/ && $1 > $most; }
		usleep(5_000);
	}
	syswrite $write, "$most\n";
	require POSIX;
	POSIX::_exit(0);
}

sub stop_sampling
{
	my ($child, $read) = @{ $_[0] };
	kill 'TERM', $child;
	my $most = readline $read;
	waitpid $child, 0;
	return $most / 1024;
}

# Deliver n messages of some MB while small ones come; two handlers take each of them.
sub measure
{
	my ($n, $mb) = @_;
	$node->restart;
	$node->sql("SELECT outbox.pause_handler(h) FROM unnest(ARRAY['large', 'copy']) AS h");
	$node->sql("SELECT count(outbox.stage('large.x', p)) FROM public.payload($mb) AS p, generate_series(1, $n)");
	$node->sql('CHECKPOINT');
	latencies($node, $small_port, $record, 20);
	my $sampling = start_sampling();
	my $before = $node->sql('SELECT clock_timestamp()');
	$node->sql("SELECT outbox.resume_handler(h) FROM unnest(ARRAY['large', 'copy']) AS h");
	my $figures = latencies($node, $small_port, $record, $small);
	$node->wait_until("SELECT NOT EXISTS (SELECT FROM outbox.deliveries WHERE topic = 'large.x' AND state <> 'delivered')");
	my $took = $node->sql("SELECT extract(epoch FROM clock_timestamp() - '$before')");
	report("$n of $mb MB for two handlers: most memory", '%8.0f MB', stop_sampling($sampling));
	report('their rate', '%8.1f MB/s', 2 * $n * $mb / $took);
	report('small ones meanwhile: p50, p99, longest', '%8.1f ms, %.1f ms, %.1f ms', map { $figures->{$_} / 1000 } qw(p50 p99 longest));
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
	return;
}

# Many slow receivers, each of which could have 20 of some MB out, while small
# ones come: nobody waits for the end of that.
sub measure_out
{
	my ($handlers, $mb) = @_;
	my $slow_port = start_receiver('--delay-ms', 2000);
	$node->restart;
	$node->handler("slow$_", ["slow$_.*"], "http://127.0.0.1:$slow_port/", concurrency => 20, timeout => '60 s') foreach 1 .. $handlers;
	latencies($node, $small_port, $record, 20);
	my $sampling = start_sampling();
	$node->sql("SELECT count(outbox.stage('slow' || h || '.x', p)) FROM public.payload($mb) AS p, generate_series(1, $handlers) AS h, generate_series(1, 20)");
	my $figures = latencies($node, $small_port, $record, $small);
	report("$handlers slow receivers, 20 of $mb MB for each: most memory", '%8.0f MB', stop_sampling($sampling));
	report('small ones meanwhile: p50, p99, longest', '%8.1f ms, %.1f ms, %.1f ms', map { $figures->{$_} / 1000 } qw(p50 p99 longest));
	return;
}

measure($messages, 1);
measure(20, 16);
measure(4, 64);
measure_out(option('handlers', 25), 4);
$node->stop('immediate');
