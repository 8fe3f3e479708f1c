# The wall clock is set forward and back, by minutes and hours, while a lane
# waits for something: no wait takes longer for it.  A library that is
# preloaded sets the clock of the server's processes (test/lib/set_clock.c).
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

plan skip_all => 'needs Linux' unless $^O eq 'linux';

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', start => 0, conf => "outbox.rescan_interval = '2s'");
my $clock = $node->basedir . '/clock';
my $library = $node->basedir . '/set_clock.so';
my $offset = 0;
system('cc', '-O2', '-shared', '-fPIC', '-o', $library, 'test/lib/set_clock.c') == 0 or die 'cannot compile test/lib/set_clock.c';

# Set the clock so many seconds from where it is.
sub set_clock
{
	$offset += shift;
	open my $out, (-e $clock ? '+<' : '>'), $clock or die $!;
	syswrite $out, pack('q', $offset);
	close $out;
	return;
}

# The server that is started within goes by that clock.
sub with_clock
{
	my $start = shift;
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{SET_CLOCK_FILE} = $clock;
	return $start->();
}

set_clock(0);
with_clock(sub { $node->start });
$node->extension('postgres');
my $dispatcher = $node->wait_for_dispatcher;

sub is_delivered
{
	my ($topic, $n, $name) = @_;
	return $node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = '$topic' AND state = 'delivered'", $n, $name);
}

my %options = (
	rate => { rate_limit => 2 },
	held => { retry_after_max => '1 s' },
	broken => { breaker_threshold => 1, breaker_wait => '1 s', breaker_wait_max => '1 s' },
	batch => { batch_size => 10, batch_wait => '1 s' },
	plain => {},
	lock => {},);
$node->handler($_, ["$_.*"], $receiver->url("/$_"), max_attempts => 50, backoff_base => '1 h', backoff_max => '1 h', %{ $options{$_} }) foreach sort keys %options;

$node->handler('pulled', ['pulled.*']);

# Steps follow each other, so that waits of one meet the next one too.
my $round = 0;
foreach my $step (-3600, 7200, -120, 90, -7200)
{
	$round++;
	# What is refused or fails is retried when its row says, by the wall clock; the others of its handler are what counts.
	$receiver->on('/held', { status => 429, headers => { 'Retry-After' => 3600 } }, {});
	$receiver->on('/broken', { status => 500 }, {});
	$node->stage("held.refused$round");
	$node->stage("broken.fails$round");
	$node->wait_until("SELECT count(*) = 2 FROM outbox.deliveries WHERE topic IN ('held.refused$round', 'broken.fails$round') AND state = 'retrying'");
	$node->sql("SELECT count(outbox.stage('rate.x$round')) FROM generate_series(1, 5)");
	$node->sql("SELECT count(outbox.stage('batch.x$round')) FROM generate_series(1, 3)");

	# An answer that cannot be settled for now.
	$receiver->on('/lock', { hang => 1 });
	my $id = $node->stage("lock.x$round");
	$receiver->wait_for_requests($round, '/lock') or die 'no request';
	my $locker = PsqlSession->new($node);
	$locker->run("BEGIN; SELECT FROM outbox.delivery WHERE message_id = '$id' FOR UPDATE");
	$receiver->on('/lock', {});
	$receiver->release('/lock', {});

	set_clock($step);
	$node->sql("SELECT outbox.stage('held.x$round'), outbox.stage('broken.x$round'), outbox.stage('plain.x$round')");
	$locker->run('ROLLBACK');
	$locker->close;
	is_delivered("rate.x$round", 5, "clock set by $step s: a rate limit");
	is_delivered("batch.x$round", 3, 'a batch that is not full');
	is_delivered("held.x$round", 1, 'a receiver that asked for time');
	is_delivered("broken.x$round", 1, 'an open breaker');
	is_delivered("lock.x$round", 1, 'a row that was locked');
	is_delivered("plain.x$round", 1, 'nothing at all');

	# Put right by hand, which only a rescan finds.
	$id = $node->stage("plain.late$round", '{}', delay => \"interval '1 day'");
	$node->sql("UPDATE outbox.delivery SET due_at = clock_timestamp() WHERE message_id = '$id'");
	is_delivered("plain.late$round", 1, 'a row that a rescan finds');
}

# Database work that fails pauses; the clock is set back meanwhile.
$node->sql(<<'END');
CREATE SEQUENCE public.tries;
CREATE FUNCTION public.no_space() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('public.tries');
	RAISE EXCEPTION 'no space' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER no_space BEFORE INSERT ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION public.no_space();
ALTER TABLE outbox.attempt ENABLE ALWAYS TRIGGER no_space;
END
$receiver->on('/plain', { status => 400 }, {});
$node->stage('plain.fails');
$node->wait_until('SELECT is_called FROM public.tries');
set_clock(-3600);
$node->sql('DROP TRIGGER no_space ON outbox.attempt');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'plain.fails' AND state = 'retrying'", 1, 'a pause after failed work');

# A time in a row goes by the wall clock: what is due in an hour is due when that is set there.
$node->stage('plain.scheduled', '{}', delay => \"interval '1 hour'");
set_clock(3605);
is_delivered('plain.scheduled', 1, 'what is scheduled is due when the clock says so');
is($node->dispatcher_pid, $dispatcher, 'all by one dispatcher');

# What has expired by a clock that was just set forward far is in doubt for a minute, neither sent nor cancelled.
$node->sql("SELECT outbox.pause_handler('plain')");
my $sure = $node->stage('plain.first');
my $doubtful = $node->stage('plain.doubtful', '{}', ttl => '30 minutes');
my $pulled = $node->stage('pulled.doubtful', '{}', ttl => '30 minutes');
set_clock(3600);
$node->sql("SELECT outbox.resume_handler('plain')");
is_delivered('plain.first', 1, 'what does not expire goes');
is($node->sql("SELECT count(*) FROM outbox.claim('pulled')"), 0, 'nobody can claim what may have expired');
my $late = $node->stage('rate.late', '{}', delay => \"interval '1 day'");
$node->sql("UPDATE outbox.delivery SET due_at = clock_timestamp() WHERE message_id = '$late'");
is_delivered('rate.late', 1, 'a rescan has looked at everything');
is($node->sql("SELECT string_agg(state, ' ') FROM outbox.deliveries WHERE message_id IN ('$doubtful', '$pulled')"), 'pending pending', 'neither sent nor cancelled');
set_clock(-3600);
is_delivered('plain.doubtful', 1, 'it is sent when the clock is set back');
$node->wait_for("SELECT count(*) FROM outbox.claim('pulled')", 1, 'and can be claimed');
# A small step is believed.
$node->sql("SELECT outbox.pause_handler('plain')");
$node->stage('plain.expires', '{}', ttl => '5 s');
set_clock(8);
$node->wait_for("SELECT code FROM outbox.deliveries WHERE topic = 'plain.expires'", 'expired', 'a small step is believed');
$node->sql("SELECT outbox.resume_handler('plain')");

# A breaker that was written when the clock was ahead.
$receiver->on('/broken', { status => 500 }, {});
$node->stage('broken.last');
$node->wait_until("SELECT breaker = 'open' FROM outbox.handlers WHERE handler = 'broken'");
$node->stop;
set_clock(-7200);
with_clock(sub { $node->start });
$node->stage('broken.after');
is_delivered('broken.after', 1, 'a breaker kept over a restart');
$node->stop;
done_testing();
