# Schedules where the database is another one's, where the server is another
# one, and where its clock is set: copies hold them, a standby that is promoted
# goes on, and no occurrence takes place twice.
use strict;
use warnings;

use OutboxCluster;
use Test::More;

my $node = OutboxCluster->create('main', start => 0, init => { allows_streaming => 1 }, conf => 'synchronous_commit = on');
my $clock = $node->basedir . '/clock';
my $library = $node->basedir . '/set_clock.so';
my $offset = 0;
system('cc', '-O2', '-shared', '-fPIC', '-o', $library, 'test/lib/set_clock.c') == 0 or die 'cannot compile test/lib/set_clock.c';

# As in t/062: set the clock of the server's processes so many seconds from where it is.
sub set_clock
{
	$offset += shift;
	open my $out, (-e $clock ? '+<' : '>'), $clock or die $!;
	syswrite $out, pack('q', $offset);
	close $out;
	return;
}

set_clock(0);
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{SET_CLOCK_FILE} = $clock;
	$node->start;
}
$node->extension('postgres');
$node->wait_for_dispatcher;
$node->sql(q{SELECT outbox.create_schedule('second', every => '1 s', topic => 'tick', catch_up => 'all'),
	outbox.create_schedule('hourly', '0 * * * *', topic => 'hour', catch_up => 'last'),
	outbox.create_schedule('skipping', '0 * * * *', topic => 'skipped')});
$node->wait_for(q{SELECT runs > 1 FROM outbox.schedules WHERE name = 'second'}, 't', 'a schedule runs');

# --- the clock
my $hours = $node->sql(q{SELECT count(*) FROM outbox.message WHERE topic = 'hour'});
set_clock(3 * 3600);
$node->wait_for(q{SELECT runs || ' ' || missed FROM outbox.schedules WHERE name = 'hourly'}, $hours + 1 . ' 2', 'set forward by three hours: the last of them');
$node->wait_for(q{SELECT missed >= 2 AND next_run_at > now() FROM outbox.schedules WHERE name = 'skipping'}, 't', 'who skips goes on from there');
$node->wait_for(q{SELECT next_run_at > now() - interval '2 s' FROM outbox.schedules WHERE name = 'second'}, 't', 'who catches all up does');
is($node->sql(q{SELECT count(*) <= 1100 FROM outbox.message WHERE topic = 'tick'}), 't', 'but no more than a thousand');
my $ticks = $node->sql(q{SELECT max(dedupe_key) FROM outbox.message WHERE topic = 'tick'});
set_clock(-5);
$node->wait_for("SELECT max(dedupe_key) > '$ticks' FROM outbox.message WHERE topic = 'tick'", 't', 'set back by some seconds: on when it comes to times that have not been');
is($node->sql(q{SELECT count(*) - count(DISTINCT dedupe_key) FROM outbox.message WHERE topic = 'tick'}), 0, 'none twice');
set_clock(-7200);
like($node->sql('SELECT reasons FROM outbox.health()'), qr/schedule \\"hourly\\" has run while the clock was ahead/, 'set back by hours: health() tells who waits');
$node->sql(q{SELECT outbox.resume_schedule(name) FROM outbox.schedules});
is($node->sql(q{SELECT bool_and(next_run_at <= now() + interval '1 hour') FROM outbox.schedules}), 't', 'they go on when they are told to');
$node->wait_for(q{SELECT last_scheduled_at BETWEEN now() - interval '10 s' AND now() FROM outbox.schedules WHERE name = 'second'}, 't', 'from now on');
$node->sql(q{SELECT outbox.pause_schedule('hourly'), outbox.pause_schedule('skipping')});

# --- a copy
$node->sql('ALTER SYSTEM SET outbox.rescan_interval = 1000');
$node->reload;
$node->sql('CREATE DATABASE copy TEMPLATE postgres', 'template1');
$node->wait_for(q{SELECT state FROM outbox.dispatchers WHERE database = 'copy'}, 'held', 'a copy is held', 'copy');
my $runs = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'second'}, 'copy');
like($node->sql_error('CALL outbox.run_schedules()', 'copy'), qr/55000: schedules are held: this database is a copy of another one.*HINT:  Call outbox\.adopt\(\)/s, 'by hand neither');
my $original = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'second'});
$node->wait_for("SELECT runs > $original + 2 FROM outbox.schedules WHERE name = 'second'", 't', 'the original goes on');
is($node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'second'}, 'copy'), $runs, 'the copy does not');
$node->sql('SELECT outbox.adopt()', 'copy');
$node->wait_for("SELECT runs > $runs + 2 FROM outbox.schedules WHERE name = 'second'", 't', 'until it is adopted', 'copy');
is($node->sql(q{SELECT count(DISTINCT home) || ' ' || bool_and(home = outbox_internal.home()) FROM outbox.schedule}, 'copy'), '1 true', 'and is at home there');
isnt($node->sql(q{SELECT outbox.create_schedule('new', '@daily', topic => 'x')}, 'copy'), '', 'new ones have numbers of their own');
$node->sql('DROP DATABASE copy');

# --- a standby
$node->backup('base');
my $standby = OutboxCluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{SET_CLOCK_FILE} = $clock;
	$standby->start;
}
$node->wait_for_catchup($standby);
is($standby->sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox schedule worker'}), 0, 'a standby runs none');
like($standby->sql_error('CALL outbox.run_schedules()'), qr/25006/, 'nor by hand');
like($standby->sql_error(q{SELECT outbox.run_now('second')}), qr/25006/, 'not a single one');
$node->wait_for(q{SELECT runs > 5 FROM outbox.schedules WHERE name = 'second'}, 't', 'the primary goes on');
my $missed = $node->sql(q{SELECT missed FROM outbox.schedules WHERE name = 'second'});
$node->wait_for_catchup($standby);
$node->stop('immediate');
$standby->promote;
my $before = $standby->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'second'});
$standby->wait_for("SELECT runs > $before + 2 AND next_run_at > now() - interval '2 s' FROM outbox.schedules WHERE name = 'second'", 't', 'promoted, it goes on and catches up');
is($standby->sql(q{SELECT count(*) - count(DISTINCT dedupe_key) FROM outbox.message WHERE topic = 'tick'}), 0, 'none twice');
is($standby->sql(q{SELECT missed FROM outbox.schedules WHERE name = 'second'}), $missed, 'and none was missed');
$standby->stop;
done_testing();
