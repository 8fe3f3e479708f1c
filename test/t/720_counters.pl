# What is counted: outbox.stat_handlers, stat_histograms, stat_dispatcher and
# metrics(); over restarts and crashes; and scraped by a Prometheus.
use strict;
use warnings;

use HttpReceiver;
use IO::Socket::INET;
use OutboxCluster;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.max_stat_handlers = 8\noutbox.rescan_interval = '500 ms'\n");
$node->wait_for_dispatcher;

# Columns of a handler, as one line.
sub numbers
{
	my ($handler, $columns, $database) = @_;
	return "SELECT concat_ws(' ', $columns) FROM outbox.stat_handlers WHERE handler = " . $node->quote($handler);
}

# --- pushed
$receiver->on('/push', { status => 200 });
$node->handler('push', ['a.*'], $receiver->url('/push'), backoff => \"ARRAY['20 ms']::interval[]", max_attempts => 2);
is($node->sql(numbers('push', 'kind, staged, delivered, attempts, request_seconds, stats_reset IS NULL')), 'push 0 0 0 0 t', 'a handler that nothing was counted of');
$node->stage('a.x', '{"n": 1}');
$node->sql("BEGIN; SELECT outbox.stage('a.x'); ROLLBACK");
$node->sql("BEGIN; SELECT outbox.stage('a.x'); SAVEPOINT one; SELECT outbox.stage('a.x'); SAVEPOINT two; SELECT outbox.stage('a.x'); RELEASE two; ROLLBACK TO one; SELECT outbox.stage('a.x'); SAVEPOINT three; SELECT outbox.stage('a.x'); RELEASE three; COMMIT");
$node->sql("DO \$\$ BEGIN FOR i IN 1 .. 10 LOOP BEGIN PERFORM outbox.stage('a.x'); IF i % 2 = 0 THEN RAISE 'no'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END \$\$");
$node->wait_for_states('delivered 9');
$node->wait_for(numbers('push', 'staged, delivered, retried, dead, attempts, answers_2xx, requests, wake_ups > 0, deliveries_timed'), '9 9 0 0 9 9 9 t 9',
	'what committed was staged and delivered, and nothing of a savepoint that was rolled back');
is($node->sql(numbers('push', 'bytes_sent, request_seconds > 0, request_p50_seconds <= request_p99_seconds, delivery_p50_seconds < 10')),
	length(join '', map { $_->{body} } $receiver->requests) . ' t t t', 'bytes are those of the bodies; times are taken');

$receiver->on('/push', { status => 500 }, { status => 302 }, { status => 200 });
$node->stage('a.y');
$node->wait_for(numbers('push', 'delivered, retried, dead, answers_5xx, answers_3xx, attempts'), '9 1 1 1 1 11', 'attempts by their answers, transitions by state');
is($node->sql("SELECT outbox.requeue_where('push')"), 1, 'one is brought back');
$node->wait_for(numbers('push', 'requeued, delivered'), '1 10', 'which is counted, too');
$node->sql("SELECT outbox.stage('a.z', deliver_at => clock_timestamp() + interval '1 hour'), outbox.stage('a.z', deliver_at => clock_timestamp() + interval '1 hour')");
is($node->sql("BEGIN; SELECT outbox.cancel_where('push'); ROLLBACK; SELECT outbox.cancel_where('push')"), "2\n2", 'two are cancelled');
is($node->sql(numbers('push', 'cancelled')), 2, 'once, when that commits');

# --- from the commit, however long that took
$node->sql("SELECT outbox.reset_stats('push', 'a test')");
is($node->sql("SELECT arguments ->> 'handler' || ': ' || reason FROM outbox.actions WHERE action = 'reset_stats'"), 'push: a test', 'that numbers were reset is written down');
is($node->sql(numbers('push', "staged, delivered, attempts, deliveries_timed, stats_reset > clock_timestamp() - interval '1 minute'")), '0 0 0 0 t', 'numbers begin anew');
$node->sql("BEGIN; SELECT outbox.stage('a.x'); SELECT pg_sleep(3); COMMIT");
$node->wait_for(numbers('push', 'deliveries_timed, delivery_seconds < 2.5'), '1 t', 'the time from commit to answer does not begin before the commit');
is($node->sql("SELECT count(*) || ' ' || sum(n) || ' ' || max(cumulative) FROM outbox.stat_histograms WHERE handler = 'push' AND histogram = 'delivery'"), '26 1 1', 'a histogram has 26 buckets');
is($node->sql("SELECT count(DISTINCT le_seconds) FROM outbox.stat_histograms WHERE handler = 'push' AND n > 0 AND histogram = 'request' AND le_seconds > (SELECT request_seconds / requests FROM outbox.stat_handlers WHERE handler = 'push')"), 1, 'a time is in the bucket above it');

# --- nobody there; a batch; a function that settles
my $gone = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1)->sockport;
$node->handler('away', ['away'], "http://127.0.0.1:$gone/", max_attempts => 1);
$node->stage('away');
$node->wait_for(numbers('away', 'connect_failures, dead, attempts, deliveries_timed'), '1 1 1 0', 'a connection that was refused');
$receiver->on('/batch', {});
$node->handler('batch', ['batch'], $receiver->url('/batch'), batch_size => 10, batch_wait => \"'1 s'");
$node->sql("SELECT outbox.stage_many('batch', array_fill('{}'::jsonb, '{10}'))");
$node->wait_for(numbers('batch', 'delivered, answers_2xx, requests, deliveries_timed'), '10 10 1 10', 'a batch is one request, and ten attempts');
$node->sql("CREATE ROLE app; CREATE FUNCTION public.settled(outbox.settlement) RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN IF (\$1).topic = 'settle.bad' THEN RAISE 'bad'; END IF; END \$\$; ALTER FUNCTION public.settled OWNER TO app");
$receiver->on('/settle', {});
$node->handler('settle', ['settle.*'], $receiver->url('/settle'), on_settle => 'public.settled(outbox.settlement)', max_attempts => 1);
$node->sql("SELECT outbox.stage('settle.good'), outbox.stage('settle.bad')");
$node->wait_for(numbers('settle', 'delivered, dead, answers_2xx'), '1 1 2', 'what a function of on_settle decides');

# --- pulled
$node->handler('pull', ['pull'], undef, max_attempts => 2);
$node->sql("SELECT outbox.stage('pull') FROM generate_series(1, 4)");
$node->sql("BEGIN; SELECT outbox.claim('pull', 4); ROLLBACK");
is($node->sql(numbers('pull', 'kind, staged, deliveries_timed')), 'pull 4 0', 'a claim that is rolled back is none');
$node->sql("DO \$\$ DECLARE c record; BEGIN
	SELECT * INTO c FROM outbox.claim('pull'); PERFORM outbox.complete('pull', c.id, c.attempt);
	SELECT * INTO c FROM outbox.claim('pull'); PERFORM outbox.fail('pull', c.id, c.attempt);
	SELECT * INTO c FROM outbox.claim('pull'); PERFORM outbox.retry('pull', c.id, c.attempt, after => '1 hour');
	SELECT * INTO c FROM outbox.claim('pull', 1, '1 ms'); END \$\$");
$node->wait_for("WITH c AS (SELECT outbox.claim('pull', 1, '1 ms')) SELECT count(*) > 0 FROM c", 't', 'a lease runs out');
$node->wait_for(numbers('pull', 'delivered, dead, retried, completed, refused, leases_expired, attempts, deliveries_timed, requests'), '1 2 2 1 2 2 5 4 0', 'what consumers do');

# --- the dispatcher
is($node->sql("SELECT concat_ws(' ', starts, turns > 10, busy_seconds > 0, waiting_seconds > 0, transactions > 10, failed_transactions, deliveries_read > 20, requests > 10, connections_reused > 0, unsent, settled > 10, doorbell_overflows, uncounted) FROM outbox.stat_dispatcher"),
	'1 t t t t 0 t t t 0 t 0 0', 'what the dispatcher has done');

# --- what is given up for its age
$node->sql("SELECT outbox.stage('pull', ttl => '100 ms'), outbox.pause_handler('push'), outbox.stage('a.old', ttl => '100 ms')");
$node->wait_for("SELECT string_agg(concat_ws(' ', cancelled, expired), ', ' ORDER BY handler) FROM outbox.stat_handlers WHERE handler IN ('pull', 'push')", '1 1, 1 1', 'what has expired is cancelled, and counted as both');
$node->sql("SELECT outbox.resume_handler('push')");

# --- more handlers than are counted
$node->handler("h$_", ["h$_"], undef) foreach 1 .. 5;
$node->sql("SELECT outbox.stage('h' || n) FROM generate_series(1, 5) n");
is($node->sql("SELECT string_agg(staged::text, ' ' ORDER BY handler) FROM outbox.stat_handlers WHERE handler LIKE 'h_'"), '1 1 1 0 0', 'beyond outbox.max_stat_handlers nothing is counted');
is($node->sql('SELECT uncounted FROM outbox.stat_dispatcher'), 2, 'but that is');
$node->sql("SELECT outbox.drop_handler('h1'), outbox.drop_handler('h2')");
$node->wait_for('SELECT count(*) FROM outbox_internal.stat_handlers()', 6, 'dropped handlers make room');
$node->sql("SELECT outbox.stage('h4'), outbox.stage('h5')");
is($node->sql("SELECT string_agg(staged::text, ' ' ORDER BY handler) FROM outbox.stat_handlers WHERE handler LIKE 'h_'"), '1 1 1', 'for others');

# --- over restarts
my $all = "SELECT string_agg(concat_ws(' ', handler, staged, delivered, dead, retried, attempts, bytes_sent, delivery_seconds, stats_reset), ', ' ORDER BY handler) FROM outbox.stat_handlers";
my $before = $node->sql($all);
my $file = $node->data_dir . '/pg_stat/outbox.stat';
$node->stop;
ok(-s $file, 'a file is left in the data directory');
$node->start;
is($node->sql($all), $before, 'numbers survive a restart');
ok(!-e $file, 'and the file is gone');
$node->wait_for_dispatcher;
is($node->sql('SELECT starts FROM outbox.stat_dispatcher'), 2, "the dispatcher's, too");

$node->stop;
my $bytes = slurp_file($file);
substr($bytes, 200, 1) ^= "\x01";
open my $out, '>:raw', $file or die $!;
print $out $bytes;
close $out;
$node->start;
is($node->sql("SELECT sum(staged) FROM outbox.stat_handlers"), 0, 'a damaged file is not taken');
like($node->log_text, qr/outbox begins to count anew, because it cannot read file "pg_stat\/outbox.stat"/, 'and the log says so');
$node->stop;
$bytes = slurp_file($file);
open $out, '>:raw', $file or die $!;
print $out substr $bytes, 0, 1500;
close $out;
$node->start;
$node->wait_for_dispatcher;
is($node->sql("SELECT sum(staged) FROM outbox.stat_handlers"), 0, 'nor one that was cut short');

$node->stage('a.x');
$node->stop('immediate');
$node->start;
$node->wait_for_dispatcher;
is($node->sql(numbers('push', 'staged')), 0, 'after an immediate shutdown numbers begin anew');
$node->stage('a.x');
$node->wait_for(numbers('push', 'staged'), 1, 'and go on');
my $pid = $node->dispatcher_pid;
kill 'KILL', $pid;
$node->wait_for(numbers('push', 'staged'), 0, 'after a crash as well');
$node->wait_for_dispatcher('postgres', $pid);

# --- an extension that is made anew, and a database that is gone
$node->extension('other');
$node->wait_for_dispatcher('other');
$node->sql("SELECT outbox.create_handler('first', '{x}', NULL), outbox.create_handler('too', '{x}', NULL); SELECT outbox.stage('x')", 'other');
is($node->sql("SELECT string_agg(concat_ws(' ', handler, staged), ', ' ORDER BY handler) FROM outbox.stat_handlers", 'other'), 'first 1, too 1', 'another database has its own');
$node->sql('DROP EXTENSION outbox; CREATE EXTENSION outbox', 'other');
$node->sql("SELECT outbox.create_handler('second', '{x}', NULL)", 'other');
is($node->sql("SELECT concat_ws(' ', handler, staged) FROM outbox.stat_handlers", 'other'), 'second 0', 'and another extension, too');
$node->wait_for('SELECT count(*) FROM outbox_internal.stat_handlers() WHERE handler_id > 1', 0, 'where nothing is left of the one before', 'other');
$node->sql("DROP DATABASE other");

# --- Prometheus's text
sub lint
{
	my $text = shift;
	open my $promtool, '|-', 'promtool check metrics > /dev/null 2>&1' or return 'no promtool';
	print $promtool $text;
	close $promtool;
	return $? >> 8;
}

# A server that answers every GET with what a query returns.
sub exporter
{
	my ($database) = @_;
	my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 10) or die $!;
	my $pid = fork // die $!;
	return ($socket->sockport, $pid) if $pid;
	$SIG{TERM} = sub { POSIX::_exit(0) };
	while (my $client = $socket->accept)
	{
		while (my $line = <$client>) { last if $line =~ /^\r?$/; }
		my ($status, $body) = $node->psql($database, 'SELECT outbox.metrics()');
		print $client "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
		close $client;
	}
	POSIX::_exit(0);
}

my $odd = 'odd "\\';
$node->extension('odd');
$node->wait_for_dispatcher('odd');
$receiver->on('/odd', {});
$node->handler($odd, ['odd'], $receiver->url('/odd'), database => 'odd');
$node->stage('odd', '{}', database => 'odd');
$node->wait_for("SELECT delivered FROM outbox.stat_handlers", 1, 'one is delivered', 'odd');
my $text = $node->sql('SELECT outbox.metrics()', 'odd') . "\n";
like($text, qr/^outbox_deliveries_delivered_total\{database="odd",handler="odd \\"\\\\"\} 1$/m, 'labels are escaped');
like($text, qr/^# HELP outbox_attempts_total [^\n]+\n# TYPE outbox_attempts_total counter\noutbox_attempts_total\{[^}]*class="2xx"\} 1$/m, 'with help and type');
like($text, qr/^outbox_request_duration_seconds_bucket\{[^}]*,le="\+Inf"\} 1\noutbox_request_duration_seconds_sum\{[^}]*\} [0-9.e-]+\noutbox_request_duration_seconds_count\{[^}]*\} 1$/m, 'a histogram ends with its sum and count');
my %seen;
is(scalar(grep { $seen{ /^(\S+\{.*\}) / ? $1 : $_ }++ } split /\n/, $text), 0, 'no sample is there twice');
is($node->sql("SET ROLE pg_monitor; SELECT outbox.metrics() = '' OR NOT EXISTS (SELECT FROM outbox.stat_handlers, outbox.stat_dispatcher, outbox.stat_histograms)", 'odd'), 'f', 'members of pg_monitor can ask');

SKIP:
{
	skip 'no prometheus', 4 unless grep { -x "$_/promtool" } split /:/, $ENV{PATH};
	is(lint($text), 0, 'promtool has nothing to say against it');
	isnt(lint("outbox_bad_total 1\noutbox_bad_total 1\n"), 0, 'though it would');

	my ($port, $exporter) = exporter('odd');
	my $own = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1)->sockport;
	my $dir = PostgreSQL::Test::Utils::tempdir;
	append_to_file("$dir/prometheus.yml", <<"END");
global: {scrape_interval: 1s}
scrape_configs:
- job_name: outbox
  static_configs: [{targets: ['127.0.0.1:$port']}]
END
	my $prometheus = fork // die $!;
	if (!$prometheus)
	{
		open STDOUT, '>', "$dir/log";
		open STDERR, '>&', \*STDOUT;
		exec 'prometheus', "--config.file=$dir/prometheus.yml", "--storage.tsdb.path=$dir/data", "--web.listen-address=127.0.0.1:$own" or POSIX::_exit(1);
	}
	my $ask = sub {
		my $query = shift;
		my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $own) or return '';
		print $socket "GET /api/v1/query?query=$query HTTP/1.0\r\n\r\n";
		local $/;
		return <$socket> // '';
	};
	my $scraped = $node->wait_while_not(sub { $ask->('outbox_deliveries_delivered_total') =~ /"value":\[[0-9.]+,"1"\]/ }, 'a Prometheus scrapes it');
	diag(slurp_file("$dir/log")) unless $scraped;
	like($ask->('histogram_quantile(0.5,outbox_request_duration_seconds_bucket)'), qr/"handler":"odd \\"\\\\",.*"value":\[[0-9.]+,"[0-9.e-]+"\]/, 'and can work with its histograms');
	kill 'TERM', $prometheus, $exporter;
	waitpid $_, 0 foreach $prometheus, $exporter;
}

$node->stop;
done_testing;
