# The workers come and go without anybody's help: whatever ends a launcher, a
# dispatcher or a backend, delivery goes on by itself within seconds, one that
# keeps failing is tried again at growing intervals, and the server stops fast.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use Time::Local qw(timegm);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');
$node->handler('h', ['a.*'], $receiver->url('/h'));

sub launcher_pid
{
	return $node->sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox launcher'");
}

sub wait_for_launcher
{
	my $not = shift;
	# By new connections: before PostgreSQL 16 a postmaster that hears of a worker's
	# end just before it goes to sleep does so for a minute, unless somebody comes.
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'outbox launcher' AND pid <> $not");
	return launcher_pid();
}

my $staged = 0;
my $id;

sub deliver_one
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$id = $node->stage('a.b', sprintf '{"n": %d}', ++$staged);
	return $node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', $name);
}

deliver_one('a message is delivered');

# pg_terminate_backend.
my $dispatcher = $node->wait_for_dispatcher;
my $launcher = launcher_pid();
my $before = time;
$node->sql("SELECT pg_terminate_backend($launcher)");
$launcher = wait_for_launcher($launcher);
cmp_ok(time - $before, '<', 10, 'a terminated launcher is back within seconds');
is($node->dispatcher_pid, $dispatcher, 'the dispatcher has gone on meanwhile');
$before = time;
$node->sql("SELECT pg_terminate_backend($dispatcher)");
$dispatcher = $node->wait_for_dispatcher('postgres', $dispatcher);
cmp_ok(time - $before, '<', 10, 'a terminated dispatcher is back within seconds, started by a launcher that did not start the one before');
deliver_one('and delivers');

# Both at once; and pg_cancel_backend does no harm.
$node->sql("SELECT pg_cancel_backend($dispatcher), pg_cancel_backend($launcher)");
deliver_one('cancelling changes nothing');
is($node->dispatcher_pid . ' ' . launcher_pid(), "$dispatcher $launcher", 'both have stayed');
$node->sql("SELECT pg_terminate_backend($dispatcher), pg_terminate_backend($launcher)");
$launcher = wait_for_launcher($launcher);
$dispatcher = $node->wait_for_dispatcher('postgres', $dispatcher);
deliver_one('both terminated at once are back and deliver');

# kill -9 takes the server down and up again.
my %victims = (
	launcher => sub { launcher_pid() },
	dispatcher => sub { $node->dispatcher_pid },
	'a backend' => sub { $node->sql('SELECT pg_backend_pid()') && 0 });
foreach my $victim ('launcher', 'dispatcher')
{
	my $pid = $victims{$victim}->();
	my $postmaster_start = $node->sql('SELECT pg_postmaster_start_time()');
	kill 'KILL', $pid;
	$node->wait_until("SELECT count(*) = 1 FROM outbox.dispatchers WHERE state = 'running' AND pid <> $dispatcher");
	$dispatcher = $node->dispatcher_pid;
	deliver_one("delivery goes on after kill -9 of the $victim");
	is($node->sql('SELECT pg_postmaster_start_time()'), $postmaster_start, 'the postmaster was not started again for it');
}
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_safe(q{BEGIN; SELECT outbox.stage('a.b', '{"n": "lost"}')});
	kill 'KILL', $pid;
	eval { $session->quit };
	$node->wait_until("SELECT count(*) = 1 FROM outbox.dispatchers WHERE state = 'running' AND pid <> $dispatcher");
	deliver_one('delivery goes on after kill -9 of a backend that had staged');
	is($node->sql(q{SELECT count(*) FROM outbox.message WHERE payload ->> 'n' = 'lost'}), 0, 'what it had not committed is gone');
}
$node->restart;
deliver_one('and after a restart');
is_deeply([ grep { $_ != 1 } values %{ $receiver->ids('/h') } ], [], 'none of them was sent twice');

# One that cannot work is tried again at growing intervals, one line each, and
# says why.
my $mark = -s $node->logfile;
$node->sql('ALTER TABLE outbox.installation RENAME TO hidden');
$node->sql('SELECT pg_terminate_backend(pid) FROM outbox.dispatchers WHERE pid IS NOT NULL');
my @times;
$node->wait_while_not(
	sub {
		@times = ();
		foreach my $line (split /\n/, slurp_file($node->logfile, $mark))
		{
			next unless $line =~ /ERROR:.*outbox\.installation/;
			$line =~ /^(\d+)-(\d+)-(\d+) (\d+):(\d+):(\d+\.\d+)/ or die "no time in: $line";
			push @times, timegm(int $6, $5, $4, $3, $2 - 1, $1) + $6 - int $6;
		}
		return @times >= 4;
	},
	'a dispatcher that cannot work is tried again');
my @gaps = map { $times[$_] - $times[ $_ - 1 ] } 1 .. 3;
cmp_ok($gaps[0], '>=', 0.45, 'after half a second');
cmp_ok($gaps[1], '>=', 0.95, 'after a second');
cmp_ok($gaps[2], '>=', 1.95, 'after two seconds');
$node->wait_for(
	"SELECT state || ': ' || last_error FROM outbox.dispatchers WHERE pid IS NULL",
	'failed: relation "outbox.installation" does not exist',
	'outbox.dispatchers says that it failed, and of what');
$node->sql('ALTER TABLE outbox.hidden RENAME TO installation');
deliver_one('and once it can work it does, without anybody doing anything');
is($node->sql('SELECT last_error IS NULL FROM outbox.dispatchers'), 't', 'the error is forgotten');

# outbox.enabled off: what is out is settled, nothing new is sent.
sub set_and_reload
{
	my ($name, $value) = @_;
	$node->sql("ALTER SYSTEM SET $name = $value");
	$node->reload;
	return;
}

$receiver->on('/h', { hang => 1 });
my $out = $node->stage('a.b', '{"n": "out"}');
$node->wait_while_not(sub { $receiver->in_flight('/h') == 1 }, 'a request is out');
$mark = -s $node->logfile;
set_and_reload('outbox.enabled', 'off');
$node->wait_for("SELECT state || ' ' || in_flight FROM outbox.dispatchers", 'disabled 1', 'outbox.enabled = off shows, with the request still out');
my $requests = $receiver->count;
my $later = $node->stage('a.b', '{"n": "later"}');
$receiver->release('/h', { status => 200 });
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$out'", 'delivered', 'its answer is settled');
is($node->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$later'"), 'pending', 'what was staged meanwhile waits');
is($receiver->count, $requests, 'and was not sent');
set_and_reload('outbox.rescan_interval', "'100ms'");
$node->sql(q{SELECT outbox.create_handler('pull', '{pull.*}', max_attempts => 1), outbox.stage('pull.item')});
$node->sql(q{SELECT count(*) FROM outbox.claim('pull', lease => '1 ms')});
$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'pull'", 'dead', 'a lease that ran out on the last attempt is found all the same');
set_and_reload('outbox.rescan_interval', 'DEFAULT');
set_and_reload('outbox.enabled', 'on');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$later'", 'delivered', 'until outbox.enabled is on again');
my @lines = grep { /outbox dispatcher for database/ } split /\n/, slurp_file($node->logfile, $mark);
is(scalar @lines, 2, 'one line in the log for each change of state');
like($lines[0], qr/database "postgres" sends nothing: outbox\.enabled is off/, 'off');
like($lines[1], qr/database "postgres" is running/, 'on');

# The server stops fast, whatever is out.
sub stop_is_fast
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $start = time;
	$node->stop('fast');
	cmp_ok(time - $start, '<', 5, "pg_ctl stop -m fast takes less than 5 s $name");
	return;
}

$receiver->on('/h', { delay => 0.3 });
$receiver->forget;
$node->sql("SELECT outbox.stage('a.b', '{\"n\": \"in flight\"}') FROM generate_series(1, 5)");
$node->wait_while_not(sub { $receiver->in_flight('/h') == 5 }, 'five requests are out');
stop_is_fast('with requests that are answered shortly');
$node->start;
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'h' AND state <> 'delivered'", 0, 'all are settled');
is_deeply([ values %{ $receiver->ids('/h') } ], [ (1) x 5 ], 'their answers were awaited: none is sent twice');

$receiver->on('/h', { hang => 1 });
$id = $node->stage('a.b', '{"n": "hangs"}');
$node->wait_while_not(sub { $receiver->in_flight('/h') == 1 }, 'a receiver hangs');
stop_is_fast('with a receiver that hangs');
$receiver->on('/h', {});
$node->start;
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', 'the message is sent again afterwards');

# What has been answered meanwhile, and would be settled together with more.
set_and_reload('outbox.settle_interval', "'10 s'");
$node->handler('answers', ['answers.*'], $receiver->url('/answers'));
$receiver->on('/h', { hang => 1 });
$node->stage('a.b', '{"n": "hangs"}');
$node->wait_while_not(sub { $receiver->in_flight('/h') == 1 }, 'a receiver hangs again');
$node->sql("SELECT outbox.stage('answers.at_once') FROM generate_series(1, 5)");
ok($receiver->wait_for_requests(5, '/answers'), 'another one answers');
stop_is_fast('with a receiver that hangs and answers that wait to be settled');
$receiver->on('/h', {});
$node->start;
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'h' AND state <> 'delivered'", 0, 'all are settled');
is_deeply([ values %{ $receiver->ids('/answers') } ], [ (1) x 5 ], 'what was answered is not sent again');

# So many of them that a settler helps, which has to end, too.
SKIP:
{
	skip 'a settler needs a second processor', 6 unless OutboxCluster::can_have_settler();
	$node->handler('load', ['load.*'], $receiver->url('/load'), concurrency => 50);
	$receiver->on('/h', { hang => 1 });
	$node->stage('a.b', '{"n": "hangs"}');
	$node->wait_while_not(sub { $receiver->in_flight('/h') == 1 }, 'a receiver hangs beside a load');
	my $loaded = $node->load_settler('load', 'for which there is a settler');
	$loaded += $node->stage_load('load.item', 4000);
	stop_is_fast('with a receiver that hangs and a settler');
	$receiver->on('/h', {});
	$node->start;
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler IN ('h', 'load') AND state <> 'delivered'", 0, 'all are settled');
	is(scalar keys %{ $receiver->ids('/load') }, $loaded, 'each message of the load was sent');
	my $again = $receiver->count('/load') - $loaded;
	cmp_ok($again, '<=', 2000 + 50, "and no more of them again than may be unsettled ($again)");
}
set_and_reload('outbox.settle_interval', 'DEFAULT');

# A standby that synchronous commits wait for and that is not there, first
# where settlements have nothing to do with it, then where they are to be on it.
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'\nwal_level = replica\nmax_wal_senders = 2");
foreach my $commit ('local', 'on')
{
	$node->append_conf('postgresql.conf', "outbox.settle_synchronous_commit = $commit");
	$node->restart;
	$id = $node->sql("SET synchronous_commit = local; SELECT outbox.stage('a.b', '{}')");
	$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', 'settling waits for no standby');
	stop_is_fast("with an absent synchronous standby (outbox.settle_synchronous_commit = $commit)");
	$node->start;
}
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'h' AND state <> 'delivered'", 0, 'nothing is left behind');
$node->stop;

# A resolver that never answers: getaddrinfo() blocks for this name.
SKIP:
{
	my $dir = PostgreSQL::Test::Utils::tempdir;
	append_to_file("$dir/never.c", <<'END');
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
	int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
		(int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **)) dlsym(RTLD_NEXT, "getaddrinfo");

	if (node != NULL && strcmp(node, "never.example") == 0)
		for (;;)
			pause();
	return next(node, service, hints, res);
}
END
	skip 'no C compiler', 3 if system("cc -shared -fPIC -o $dir/never.so $dir/never.c -ldl") != 0;
	local $ENV{LD_PRELOAD} = "$dir/never.so";
	$node->start;
	$node->handler('never', ['never.*'], 'http://never.example:' . $receiver->port . '/', timeout => '60 s', connect_timeout => '60 s');
	my $lost = $node->stage('never.answered');
	$node->wait_for("SELECT in_flight FROM outbox.dispatchers", 1, 'a name is being looked up');
	deliver_one('other handlers go on meanwhile');
	stop_is_fast('with a resolver that never answers');
}

# Nothing ended in a way that nobody meant.
unlike($node->log_text, qr/PANIC|TRAP|terminated by signal (?!9)/, 'no process has crashed');

done_testing();
