# Hostile receivers, through the database and both transports: whatever they
# do leads to an outcome that an operator can read, costs bounded memory, and
# holds up nobody else.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;
use Time::HiRes qw(time usleep);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('hostile', conf => "outbox.max_payload_size = '8MB'\noutbox.max_response_capture = '2kB'");
# (One that is told to leave while it starts says that it was cancelled.)
$node->wait_for_dispatcher;
my $fast = \"ARRAY['10 ms']::interval[]";
my $ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

sub outcome_of
{
	my $name = shift;
	return "SELECT concat_ws(' ', state, attempts, coalesce(code, '-'), http_status) FROM outbox.deliveries WHERE handler = '$name'";
}

# The dispatcher's own memory in kB, where the system tells.
sub memory
{
	my $pid = shift;
	open my $file, '<', "/proc/$pid/status" or return;
	my ($kb) = join('', <$file>) =~ /^RssAnon:\s+(\d+) kB/m;
	return $kb;
}

# Answers that are answers: how each ends, the requests it took, its first failure's code.
my %answers = (
	'100' => [ { raw => "HTTP/1.1 100 Continue\r\n\r\n$ok" }, 'delivered 1 - 200' ],
	'103' => [
		{ raw => "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\noutbox-outcome: fail; code=early\r\nRetry-After: 3600\r\n\r\n"
			  . "HTTP/1.1 103 Early Hints\r\n\r\n$ok" }, 'delivered 1 - 200' ],
	'many_1xx' => [ { raw => ("HTTP/1.1 102 Processing\r\n\r\n" x 20) . $ok }, 'delivered 1 - 200' ],
	'204' => [ { status => 204 }, 'delivered 1 - 204' ],
	'204_body' => [ { raw => "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 500 No\r\n\r\n", keep => 1 }, 'delivered 1 - 204' ],
	'304' => [ { status => 304 }, 'dead 2 304 304' ],
	'smuggled' => [ { raw => "${ok}HTTP/1.1 500 Smuggled\r\nContent-Length: 0\r\n\r\n", keep => 1 }, 'delivered 1 - 200' ],
	'to_eof' => [ { raw => "HTTP/1.1 200 OK\r\n\r\nuntil the end" }, 'delivered 1 - 200' ],
	'http10' => [ { raw => "HTTP/1.0 200 OK\r\n\r\nold" }, 'delivered 1 - 200' ],
	'chunked' => [ { raw => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\noutbox-outcome: fail\r\n\r\n", keep => 1 }, 'delivered 1 - 200' ],
	'binary' => [ { raw => "HTTP/1.1 500 \xff\xfe\r\nX-A: \xc3\x28\r\nContent-Length: 9\r\n\r\na\0b\xff\xfe\xc3(\xed\xa0" }, 'dead 2 500 500' ],
	'odd_outcome' => [ { raw => "HTTP/1.1 422 No\r\noutbox-outcome: fail; code=\xff\xfe\r\nContent-Length: 0\r\n\r\n" }, 'dead 2 422 422' ],
	'odd_after' => [ { raw => "HTTP/1.1 422 No\r\nRetry-After: \xff9999999999999999999999\r\nContent-Length: 0\r\n\r\n" }, 'dead 2 422 422' ],
	'odd_status' => [ { raw => "HTTP/1.1 799 What\r\nContent-Length: 0\r\n\r\n" }, qr/^dead 2 (799 799|body)$/ ],
	'long_outcome' => [ { status => 500, headers => { 'outbox-outcome' => 'fail; code=' . 'x' x 5000 } }, 'dead 2 500 500' ],
	'long_header' => [ { status => 500, headers => { 'X-Long' => 'x' x 50_000 } }, 'dead 2 500 500' ]);

# Answers that are none: dead after two attempts, with one of these codes.
my %broken = (
	'101' => { raw => "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x05hello", keep => 1 },
	'only_100' => { raw => "HTTP/1.1 100 Continue\r\n\r\n" },
	'only_103' => { raw => "HTTP/1.1 103 Early Hints\r\n\r\n" },
	'short' => { raw => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort" },
	'short_reset' => { raw => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort", ends => 'reset' },
	'chunk_size' => { raw => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\nok\r\n0\r\n\r\n", keep => 1 },
	'chunk_huge' => { raw => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nok", keep => 1 },
	'chunk_cut' => { raw => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok" },
	'chunk_unended' => { raw => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n" },
	'chunk_glued' => { raw => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokayokay\r\n0\r\n\r\n", keep => 1 },
	'negative' => { raw => "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello" },
	'two_lengths' => { raw => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhello" },
	'endless_length' => { raw => "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999999\r\n\r\nhello" },
	'no_http' => { raw => "220 mail.example.com ESMTP\r\n" },
	'http9' => { raw => "HTTP/9.9 200 OK\r\n\r\n" },
	'nothing_but_nul' => { raw => "\0" x 1000 },
	'many_headers' => { raw => "HTTP/1.1 200 OK\r\n" . ("X-Flood: " . 'y' x 200 . "\r\n") x 20_000 . "\r\n" },
	'one_header' => { raw => "HTTP/1.1 200 OK\r\nX-Flood: " . 'z' x 4_000_000 . "\r\n\r\n" },
	'hints_flood' => { raw => ("HTTP/1.1 103 Early Hints\r\nLink: <" . 'x' x 200 . ">\r\n\r\n") x 20_000 . $ok },
	'half_a_line' => { raw => "HTTP/1.1 20" },
	'half_headers' => { raw => "HTTP/1.1 200 OK\r\nContent-Le" });

# libcurl 7 takes the body of these up to the connection's end.
my %lenient = map { $_ => 1 } qw(two_lengths endless_length);

# Receivers that dawdle: each piece comes soon enough, the whole answer does not.
my %slow = (
	'slow_headers' => { pieces => [ "HTTP/1.1 200 OK\r\n", "X-Slow: x\r\n" ], every => 0.02, forever => 1 },
	'slow_bytes' => { pieces => [ 'H', 'T', 'T', 'P', '/', '1', '.', '1', ' ', '2' ], every => 0.02 },
	'slow_hints' => { pieces => ["HTTP/1.1 103 Early Hints\r\n\r\n"], every => 0.02, forever => 1 },
	'slow_body' => { pieces => [ "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", 'x' ], every => 0.02, forever => 1 },
	'slow_chunks' => { pieces => [ "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n" ], every => 0.02, forever => 1 },
	'silent' => { hang => 1 });

foreach my $transport ('auto', 'curl')
{
	$node->restart_with('outbox.transport' => $transport);
	my $pid = $node->wait_for_dispatcher;
	my $at = "/$transport";

	# --- answers and what is none, all at a time
	foreach my $name (keys %answers, keys %broken, keys %slow)
	{
		my $answer = $answers{$name} ? $answers{$name}[0] : $broken{$name} || $slow{$name};
		my $first = $slow{$name} ? '400 ms' : '60 s';
		$receiver->on("$at/$name/", $answer);
		$node->handler("${name}_$transport", ["$transport.all"], $receiver->url("$at/$name/"), max_attempts => 2, backoff => $fast, timeout => $first);
	}
	$node->handler("good_$transport", ["$transport.all"], $receiver->url("$at/good/"));
	my $id = $node->stage("$transport.all");
	$node->wait_for(outcome_of("good_$transport"), 'delivered 1 - 200', "$transport: who behaves has its message");
	foreach my $name (sort keys %answers)
	{
		my $expected = $answers{$name}[1];
		if (ref $expected)
		{
			$node->wait_for("SELECT state IN ('delivered', 'dead') FROM outbox.deliveries WHERE handler = '${name}_$transport'", 't', "$transport: $name: settled");
			like($node->sql(outcome_of("${name}_$transport")), $expected, "$transport: $name: as it should be");
			next;
		}
		$node->wait_for(outcome_of("${name}_$transport"), $expected, "$transport: $name: $expected");
	}
	foreach my $name (sort keys %broken)
	{
		if ($transport eq 'curl' && $lenient{$name})
		{
			$node->wait_for("SELECT concat_ws(' ', state, attempts, code) IN ('delivered 1', 'dead 2 body') FROM outbox.deliveries WHERE handler = '${name}_$transport'", 't', "$transport: $name: libcurl decides");
			next;
		}
		$node->wait_for("SELECT concat_ws(' ', state, attempts) FROM outbox.deliveries WHERE handler = '${name}_$transport'", 'dead 2', "$transport: $name: is no answer");
		like($node->sql("SELECT code FROM outbox.deliveries WHERE handler = '${name}_$transport'"), qr/^(body|connect)$/, "$transport: $name: with its code");
	}
	foreach my $name (sort keys %slow)
	{
		$node->wait_for("SELECT concat_ws(' ', state, attempts, code) FROM outbox.deliveries WHERE handler = '${name}_$transport'", 'dead 2 timeout', "$transport: $name: times out");
	}
	is($node->sql("SELECT count(*) FROM outbox.dead_letters WHERE coalesce(error, '') = '' AND code !~ '^[0-9]+\$'"), 0, "$transport: each failure says what it was");
	is($node->sql("SELECT count(*) FROM outbox.dead_letters WHERE error ~ '[\\x01-\\x08\\x0e-\\x1f]' OR length(error) > 2048"), 0, "$transport: in readable words");
	is($node->dispatcher_pid, $pid, "$transport: the dispatcher is still the same");

	# --- a kept connection that is closed at every possible moment of the next answer
	my $answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello";
	foreach my $ends ('close', 'reset')
	{
		my @moments = (0 .. length $answer);
		my $lane = "${transport}_$ends";
		foreach my $n (@moments)
		{
			my $cut = $n ? { raw => substr($answer, 0, $n), ends => $ends } : { $ends => 1 };
			$receiver->on("/$lane/$n/", { status => 200 }, $cut, { status => 200 });
		}
		$node->sql("SELECT outbox.create_handler('${lane}_' || n, ARRAY['$lane.x'], '" . $receiver->url("/$lane/")
			  . "' || n || '/', concurrency => 1, backoff => ARRAY['10 ms']::interval[]) FROM generate_series(0, $#moments) n");
		foreach my $round (1 .. 3)
		{
			$node->stage("$lane.x");
			$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = '$lane.x' AND state = 'delivered'", $round * @moments, "$transport: $ends: round $round is delivered everywhere");
		}
		my $codes = $node->sql("SELECT coalesce(string_agg(DISTINCT code, ',' ORDER BY code), '') FROM outbox.attempts WHERE handler LIKE '${lane}_%'");
		like($codes, qr/^(body|body,connect|connect)$/, "$transport: $ends: failures are $codes");
		my ($twice, $more, $none) = (0, 0, 0);
		foreach my $n (@moments)
		{
			my $ids = $receiver->ids("/$lane/$n/");
			$twice++ if grep { $_ == 2 } values %$ids;
			$more++ if grep { $_ > 2 } values %$ids;
			$none++ if keys %$ids != 3;
		}
		is($none, 0, "$transport: $ends: every message came");
		is($more, 0, "$transport: $ends: none more than twice");
		cmp_ok($twice, '>=', @moments - 3, "$transport: $ends: those whose answer was cut came again");
		is($node->sql("SELECT max(attempts) FROM outbox.deliveries WHERE topic = '$lane.x'"), 2, "$transport: $ends: at the second attempt at the latest");
	}

	# --- closed while it rests
	$node->handler("rests_$transport", ["$transport.rests"], $receiver->url("$at/rests"), concurrency => 1);
	foreach my $round (1 .. 5)
	{
		$node->stage("$transport.rests");
		$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'rests_$transport' AND state = 'delivered' AND attempts = 1", $round, "$transport: delivered at once, round $round");
		$receiver->close_idle;
	}
	is($receiver->count("$at/rests"), 5, "$transport: and each once");

	# --- timeouts count from sending, not from staging
	$receiver->on("$at/patient", { delay => 0.25 });
	$node->handler("patient_$transport", ["$transport.patient"], $receiver->url("$at/patient"), concurrency => 1, timeout => '2500 ms');
	$node->sql("SELECT outbox.stage('$transport.patient') FROM generate_series(1, 12)");
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'patient_$transport' AND state = 'delivered' AND attempts = 1", 12, "$transport: waiting in a lane is no timeout");

	# --- 2 MB to a server that never says 100 Continue
	$node->handler("upload_$transport", ["$transport.upload"], $receiver->url("$at/upload"), timeout => '60 s');
	$node->sql("SELECT outbox.stage('$transport.upload', jsonb_build_object('data', repeat('0123456789', 200000)))");
	$node->wait_for(outcome_of("upload_$transport"), 'delivered 1 - 200', "$transport: 2 MB");
	my ($upload) = $receiver->requests("$at/upload");
	is($upload->{body}, '{"data": "' . '0123456789' x 200_000 . '"}', "$transport: arrive whole");
	ok(!exists $upload->{headers}{expect}, "$transport: without Expect");

	$receiver->forget;

	# --- a body of 1 GB
	SKIP:
	{
		my $before = memory($pid);
		skip 'the system does not tell the memory of a process', 3 unless defined $before;
		$receiver->on("$at/gigabyte", { status => 500, size => 1_000_000_000 });
		$node->handler("gigabyte_$transport", ["$transport.gigabyte"], $receiver->url("$at/gigabyte"), max_attempts => 1, timeout => '10 min');
		$node->handler("beside_$transport", ["$transport.beside"], $receiver->url("$at/beside"));
		$node->stage("$transport.gigabyte");
		$node->stage("$transport.beside");
		my ($most, $state) = (0, '');
		my $end = time + $PostgreSQL::Test::Utils::timeout_default;
		while ($state ne 'dead' && time < $end)
		{
			$state = $node->sql("SELECT state FROM outbox.deliveries WHERE handler = 'gigabyte_$transport'");
			my $now = memory($pid) // 0;
			$most = $now if $now > $most;
			usleep 20_000;
		}
		is($node->sql(outcome_of("gigabyte_$transport")), 'dead 1 500 500', "$transport: of a body of 1 GB the beginning is read, and the status counts");
		cmp_ok($most - $before, '<', 16_384, "$transport: in bounded memory");
		note("$transport: $before kB before, $most kB at most");
		is($node->sql(outcome_of("beside_$transport")), 'delivered 1 - 200', "$transport: others go on meanwhile");
		cmp_ok($node->sql("SELECT octet_length(error) FROM outbox.dead_letters WHERE handler = 'gigabyte_$transport'"), '<=', 2048, "$transport: its start is kept");
	}
	is($node->dispatcher_pid, $pid, "$transport: still the same dispatcher");
}

# --- IPv6 only
SKIP:
{
	my $receiver6 = eval { HttpReceiver->start(address => '::1') };
	skip 'no IPv6 here', 2 unless $receiver6;
	foreach my $transport ('auto', 'curl')
	{
		$node->restart_with('outbox.transport' => $transport);
		$node->handler("six_$transport", ["$transport.six"], $receiver6->url('/six'));
		$node->stage("$transport.six");
		$node->wait_for(outcome_of("six_$transport"), 'delivered 1 - 200', "$transport: IPv6 only");
	}
}

unlike($node->log_text, qr/PANIC|FATAL(?!:  terminating background worker "outbox)|terminated by signal|ERROR/, 'no receiver is an error of the server');
$node->stop;
done_testing();
