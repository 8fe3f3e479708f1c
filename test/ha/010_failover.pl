# High availability as doc/high-availability.md sets it up: three nodes of Patroni,
# a synchronous standby, producers and a consumer that reconnect, two push handlers
# and a pull handler, and what happens to a cluster: a switchover, a leader that
# loses power, one that stands still until it has been replaced, all of it stopped
# and started; nodes that come back by pg_rewind or are cloned again; and the same
# loss of power without a synchronous standby.  Deliveries resume without a hand.
#
# Takes some minutes; what it measures it says at the end.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP ();
use List::Util qw(max min uniq);
use OrderChecker;
use PatroniCluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;
use Time::HiRes qw(time);

# This is an ordinary user's: setpriv, Python and the packages are Debian's.
my $missing = PatroniCluster::missing();
plan skip_all => "$missing is not installed" if $missing;

# Whatever happens, it ends.
my $deadline = time + 25 * 60;

my $producers = 4;
my %concurrency = (plain => 20, ordered => 6);
my @figures;

my $receiver = HttpReceiver->start;
# A receiver that takes a moment has requests out when the server dies.
$receiver->on('/plain', { delay => 0.01 });
$receiver->on('/ordered', { delay => 0.002 });

my $cluster = PatroniCluster->create('shop');
my $leader = $cluster->start;
ok($cluster->wait_until_whole(1), 'three nodes, one a synchronous standby');
$cluster->pgbackrest($leader, 'stanza-create');

$cluster->sql($leader, <<"SQL");
CREATE EXTENSION outbox;
CREATE TABLE purchase (n bigint PRIMARY KEY);
CREATE ROLE app LOGIN PASSWORD 'app-password';
GRANT INSERT ON purchase TO app;
SELECT outbox.grant_producer('app');
SELECT outbox.create_handler('plain', ARRAY['shop.*'], '@{[ $receiver->url('/plain') ]}', concurrency => $concurrency{plain});
SELECT outbox.create_handler('ordered', ARRAY['shop.*'], '@{[ $receiver->url('/ordered') ]}', concurrency => $concurrency{ordered}, ordered => true);
SELECT outbox.create_handler('pull', ARRAY['shop.*']);
SELECT outbox.grant_consumer('pull', 'app');
SQL
check_nodes('at the start');

# Each node says of itself what it is, and only the leader sends.
sub check_nodes
{
	my $when = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $name ($cluster->names)
	{
		my $leads = $name eq $leader;
		$cluster->wait_for($name, "SELECT coalesce(string_agg(state, ','), 'none') FROM outbox.dispatchers", $leads ? 'running' : 'none',
			"$when: $name " . ($leads ? 'leads, and has a dispatcher' : 'is a standby, and has none'));
		$cluster->wait_for($name, "SELECT status || ' ' || dispatcher FROM outbox.health(warn_after => '1 h', critical_after => '1 h')",
			$leads ? 'ok running' : 'ok standby', "$when: and its health is ok");
	}
	return;
}

#
# Load
#
my $round = 0;

sub start_load
{
	$round++;
	my $conninfo = $cluster->conninfo(user => 'app', password => 'app-password');
	foreach my $n (1 .. $producers)
	{
		$cluster->run_python("$round-producer$n.log", 'test/ha/producer.py', $conninfo, $round * 10_000_000 + $n * 1_000_000);
	}
	$cluster->run_python("$round-consumer.log", 'test/ha/consumer.py', $conninfo, 'pull');
	return;
}

sub load_log { my $who = shift; return slurp_file($cluster->folder . "/$round-$who.log"); }

sub committed { return map { load_log("producer$_") =~ /^committed (\d+) ([\d.]+)$/mg } 1 .. $producers; }


sub sent_by { my $node = shift; return grep { $_->{headers}{'user-agent'} eq $node } map { $receiver->requests("/$_") } sort keys %concurrency; }

# The longest time without any of these.
sub longest_pause
{
	my @times = sort { $a <=> $b } @_;
	return max(0, map { $times[$_] - $times[ $_ - 1 ] } 1 .. $#times);
}

#
# A round: load, something happens to the leader, another one (or the same) goes on.
#   happens      does it; returns when it did
#   next         who is to lead then: one of these
#   synchronous  nothing that was acknowledged may be lost
#   apart        requests that have nothing to do with the order of the others
#
sub play
{
	my ($name, %how) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	die "still not done\n" if time > $deadline;
	my $old = $leader;
	$receiver->forget;
	start_load();
	ok($receiver->wait_for_requests(500, "/$_"), "$name: the load reaches /$_") foreach sort keys %concurrency;
	my $mark = -s $cluster->log_file($how{next}[0]);
	my %marks = map { $_ => -s $cluster->log_file($_) } $cluster->names;

	my $at = $how{happens}->($old);
	$leader = $cluster->wait_for_leader(@{ $how{next} });
	my $seen = sent_by($leader);
	ok($cluster->until_true(sub { sent_by($leader) > ($leader eq $old ? $seen : 0) + 500 }, 'deliveries go on'), "$name: $leader goes on by itself");
	$how{then}->($old, $at) if $how{then};
	$cluster->stop_process("$round-producer$_") foreach 1 .. $producers;
	my $range = 'BETWEEN ' . $round * 10_000_000 . ' AND ' . ($round * 10_000_000 + 9_999_999);
	my $ours = "(payload ->> 'n')::bigint $range";
	$cluster->wait_for($leader, "SELECT count(*) FROM outbox.delivery", 0, "$name: everything is settled");
	$cluster->stop_process("$round-consumer");

	# What became of what was committed.
	my %committed = committed();
	my %business = map { $_ => 1 } split /\n/, $cluster->sql($leader, "SELECT n FROM purchase WHERE n $range");
	my %messages = map { split /\|/ } split /\n/, $cluster->sql($leader, "SELECT id, payload ->> 'n' FROM outbox.message WHERE $ours");
	is_deeply([ sort values %messages ], [ sort keys %business ], "$name: messages are there with their business rows (" . keys(%business) . ')');
	my @lost = grep { !$business{$_} } sort keys %committed;
	if ($how{synchronous})
	{
		is(scalar @lost, 0, "$name: no commit that was acknowledged is lost (" . keys(%committed) . ')') or diag("@lost[0 .. min(9, $#lost)]");
	}
	else
	{
		cmp_ok(scalar @lost, '>=', $how{lost}, "$name: what had not been replicated is lost, with its business rows (" . @lost . ')');
	}
	my @unknown = grep { !$committed{$_} } map { load_log("producer$_") =~ /^begun (\d+)$/mg } 1 .. $producers;

	my %again;
	foreach my $handler (sort keys %concurrency)
	{
		my $arrived = $receiver->ids("/$handler");
		my @missed = grep { !$arrived->{$_} } keys %messages;
		is(scalar @missed, 0, "$name: $handler has all that is there") or diag("@missed[0 .. min(9, $#missed)]");
		my @ghosts = grep { !$messages{$_} } keys %$arrived;
		$how{synchronous} ? is(scalar @ghosts, 0, "$name: $handler has nothing that is not there") : cmp_ok(scalar @ghosts, '<=', @lost + $producers, "$name: $handler has no more than what was lost (" . @ghosts . ')');
		my @twice = grep { $arrived->{$_} > 1 } keys %messages;
		my $settled = $cluster->sql($leader, "SELECT count(*) FROM outbox.deliveries WHERE handler = '$handler' AND settled_at < to_timestamp($at) AND message_id IN ("
			  . (join(', ', map { "'$_'" } @twice) || 'NULL') . ')');
		is($settled, 0, "$name: $handler: nothing is sent again that has a receipt from before");
		cmp_ok(max(0, map { $arrived->{$_} } @twice), '<=', 2, "$name: $handler: and the rest at most once more (" . @twice . ')');
		cmp_ok(scalar @twice, '<=', $how{again} // 2000 + $concurrency{$handler}, "$name: $handler: within the bound");
		$again{$handler} = @twice;
	}
	my @in_turn = map { [ @{ $_->{headers} }{qw(outbox-key webhook-id)} ] } grep { !($how{apart} && $how{apart}->($_)) } $receiver->requests('/ordered');
	check_order(staged_order($cluster->server($leader), 'ordered', "message_id IN (SELECT id FROM outbox.message WHERE $ours)"),
		[ grep { $messages{ $_->[1] } } @in_turn ], "$name: the order of keys is kept");

	# The consumer.
	my $log = load_log('consumer');
	my (%claimed, %completed, $reclaimed);
	foreach my $line (split /\n/, $log)
	{
		my ($what, $n, $attempt) = split / /, $line;
		$what eq 'claimed' ? $claimed{$n}++ : $completed{$n}++;
		$reclaimed++ if $what eq 'claimed' && $completed{$n};
	}
	is(scalar(grep { !$claimed{$_} } values %messages), 0, "$name: the consumer has claimed all");
	is($reclaimed // 0, 0, "$name: and nothing again whose completion it knew of") if $how{synchronous};

	my $ready = $leader eq $old ? undef : $cluster->said_at($leader, 'database system is ready to accept connections', $marks{$leader});
	my ($first) = sort { $a <=> $b } map { $_->{time} } grep { $_->{time} > ($ready // $at) } sent_by($leader);
	push @figures, sprintf '%-22s commits paused %4.1f s, deliveries %4.1f s; first delivery %4.0f ms after the promotion; sent twice: plain %d, ordered %d of %d; claimed twice: %d; acknowledged and lost: %d; unknown: %d',
	  $name, longest_pause(grep { /\./ } values %committed), longest_pause(map { $_->{time} } $receiver->requests('/plain')),
	  defined $ready ? 1000 * ($first - $ready) : 0, $again{plain}, $again{ordered}, scalar keys %messages, scalar(grep { $_ > 1 } values %claimed), scalar @lost, scalar @unknown;
	note($figures[-1]);
	return;
}

# A node that was gone is started again, and follows.
sub come_back
{
	my ($name, $why) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($cluster->wait_until_whole, "$why: the other standby follows");
	my $mark = -s $cluster->log_file($name);
	$cluster->start_node($name);
	ok($cluster->wait_until_whole($why !~ /asynchronous/), "$why: $name follows again");
	my $log = slurp_file($cluster->log_file($name), $mark);
	my $rewound = $log =~ /pg_rewind exit code=0/ ? 1 : 0;
	unlike($log, qr/outbox sends nothing from this server/, "$why: and is not taken for a copy");
	check_nodes($why);
	return $rewound;
}

my $name = 'switchover';
my $candidate = $cluster->synchronous_standby;
play(
	$name,
	synchronous => 1,
	again => 0,
	next => [$candidate],
	happens => sub { my $at = time; note($cluster->ctl('switchover', 'shop', '--candidate', $candidate, '--force')); return $at; });
ok($cluster->wait_until_whole(1), "$name: the old leader follows");
check_nodes($name);

$name = 'power loss';
my $victim = $leader;
play($name, synchronous => 1, next => [ $cluster->synchronous_standby ], happens => sub { return $cluster->kill_node($_[0]); });
my $rewound = come_back($victim, $name);
note("$name: rewound: $rewound");

# The leader stands still, with all its processes, until another one has taken over.
# Then its server can move again, without Patroni: there are two that accept writes
# and send, until somebody resets the machine, as a watchdog would.
$name = 'standstill';
$victim = $leader;
my ($thawed_at, @frozen);
play(
	$name,
	synchronous => 1,
	next => [ $cluster->synchronous_standby ],
	happens => sub { my $at = time; @frozen = $cluster->freeze_node($_[0]); return $at; },
	apart => sub { my $request = shift; return $request->{time} > $thawed_at && $request->{headers}{'user-agent'} eq $victim; },
	then => sub {
		my $old = shift;
		$thawed_at = time;
		$cluster->thaw_server($old, @frozen);
		is($cluster->sql($old, 'SELECT pg_is_in_recovery()'), 'f', "$name: two servers accept writes");
		my %before = committed();
		ok($cluster->until_true(sub { my %now = committed(); keys(%now) >= keys(%before) + 500 }, 'more is committed'), "$name: commits go on at the new one");
		my $reset_at = $cluster->kill_node($old);
		push @figures, sprintf '%-22s %s could move for %.1f s, and sent %d requests', $name, $old, $reset_at - $thawed_at, scalar grep { $_->{time} > $thawed_at } sent_by($old);
	});
$rewound = come_back($victim, $name);
note("$name: rewound: $rewound");

# All of it is stopped, and started again: Patroni starts every server as a standby.
$name = 'all stopped';
$cluster->stop_node($_) foreach grep({ $_ ne $leader } $cluster->names), $leader;
$cluster->start_node($_) foreach $cluster->names;
$leader = $cluster->wait_for_leader($cluster->names);
ok($cluster->wait_until_whole(1), "$name: three nodes again");
check_nodes($name);

# Without a synchronous standby.  A leader that cannot send to them makes it certain
# that something is lost.
$name = 'asynchronous power loss';
$cluster->set_option(synchronous_mode => 'false');
$cluster->wait_for($leader, q{SELECT current_setting('synchronous_standby_names')}, '', "$name: no standby is synchronous");
$victim = $leader;
my @others = grep { $_ ne $victim } $cluster->names;
play(
	$name,
	lost => 50,
	next => \@others,
	happens => sub {
		my @senders = $cluster->processes_titled($_[0], qr/walsender/);
		is(scalar @senders, 2, "$name: two standbys are sent to");
		kill 'STOP', @senders;
		my %before = committed();
		$cluster->until_true(sub { my %now = committed(); keys(%now) >= keys(%before) + 100 }, 'more is committed');
		return $cluster->kill_node($_[0]);
	});
ok(come_back($victim, $name), "$name: by pg_rewind");

# A node that is cloned again is as good as any.
$name = 'cloned again';
$cluster->set_option(synchronous_mode => 'true');
ok($cluster->wait_until_whole(1), "$name: synchronous again");
my ($cloned) = grep { $_ ne $leader } $cluster->names;
my $mark = -s $cluster->log_file($cloned);
$cluster->ctl('reinit', 'shop', $cloned, '--force');
ok($cluster->until_true(sub { slurp_file($cluster->log_file($cloned), $mark) =~ /replica has been created/ }, 'a clone'), "$name: $cloned");
ok($cluster->wait_until_whole(1), "$name: three nodes again");
if ($cluster->synchronous_standby ne $cloned)
{
	my $other = $cluster->synchronous_standby;
	$cluster->stop_node($other);
	ok($cluster->until_true(sub { ($cluster->synchronous_standby // '') eq $cloned }, 'the clone is the synchronous one'), "$name: it is the synchronous one");
	$cluster->start_node($other);
	ok($cluster->wait_until_whole(1), "$name: three nodes once more");
}
play(
	$name,
	synchronous => 1,
	again => 0,
	next => [$cloned],
	happens => sub { my $at = time; note($cluster->ctl('switchover', 'shop', '--candidate', $cloned, '--force')); return $at; });
ok($cluster->wait_until_whole(1), "$name: the old leader follows");
check_nodes($name);

is($cluster->sql($leader, 'SELECT count(*) FROM outbox.verify()'), 0, 'all is well');
unlike(slurp_file($cluster->log_file($_)), qr/PANIC|TRAP|terminated by signal/, "$_: no process has crashed") foreach $cluster->names;
diag($_) foreach '', @figures;
done_testing();
