# Handlers that are altered, paused, dropped and created again while requests
# are out with them: each request ends with what it was sent with, whatever
# its receiver does, and nothing of a configuration outlives its last request.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;
use Time::HiRes qw(usleep);

srand 370;
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');
my $session = PsqlSession->new($node);
my %often = (max_attempts => 1000, backoff => \"'{5 ms}'", jitter => 0, breaker_threshold => 0);

# Half of the paths are served well, if not at once.
my @good = ({}, {}, map { { delay => 0.001 * $_ } } 1, 5, 20, 50);
my @bad = ({ status => 500 }, { reset => 1, delay => 0.01 }, { close => 1, delay => 0.01 }, { last => 1 }, { size => 200_000 }, { delay => 0.3 });
my @paths = map { "/path_$_" } 0 .. 7;
foreach my $i (0 .. $#paths)
{
	my @answers = $i < 4 ? @good : (@good, @bad);
	$receiver->on($paths[$i], map { $answers[ rand @answers ] } 1 .. 2000);
}

sub any { return $_[ rand @_ ]; }
sub any_url { return $node->quote($receiver->url(any(@paths))); }

sub options
{
	return 'url => ' . any_url()
	  . ', concurrency => ' . (1 + int rand 20)
	  . ', timeout => ' . any("'200 ms'", "'20 s'", "'20 s'")
	  . ', http_version => ' . any("'1.1'", "'1.1'", "'2'")
	  . ', headers => jsonb_build_object(\'x-number\', ' . int(rand 1000) . '::text)';
}

my @changes = (
	(sub { my $name = any(qw(a b c)); return "SELECT outbox.alter_handler('$name', " . options() . ')'; }) x 4,
	sub { return 'SELECT outbox.alter_handler(\'a\', batch_size => ' . any(1, 3, 10) . ')'; },
	sub { my $name = any(qw(b c)); return "SELECT outbox.pause_handler('$name'); SELECT outbox.resume_handler('$name')"; },
	sub {
		return "SELECT outbox.drop_handler('d'); SELECT outbox.create_handler('d', '{storm}', max_attempts => 1000, backoff => '{5 ms}', "
		  . 'jitter => 0, breaker_threshold => 0, ' . options() . ')';
	});

foreach my $transport (qw(auto curl))
{
	my $before = $node->wait_for_dispatcher;
	$node->sql("ALTER SYSTEM SET outbox.transport = $transport");
	$node->reload;
	$node->sql("SELECT pg_terminate_backend($before)");
	my $dispatcher = $node->wait_for_dispatcher('postgres', $before);

	$node->handler($_, ['storm'], $receiver->url($paths[0]), %often) foreach qw(a b c d);
	foreach (1 .. 60)
	{
		$session->run("SELECT outbox.stage('storm', '{}') FROM generate_series(1, 10)");
		my $said = $session->run(any(@changes)->());
		fail("$transport: $said") if $said =~ /ERROR/;
		usleep(rand 30_000);
	}

	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state IN ('pending', 'retrying')", 0, "$transport: nothing is left");
	is($node->sql("SELECT string_agg(DISTINCT handler, '') FROM outbox.deliveries WHERE state <> 'delivered'") =~ s/d//r, '', "$transport: those that stayed got all of it");
	$node->sql("SELECT outbox.drop_handler('$_')") foreach qw(a b c d);
	$node->wait_while_not(sub { return $receiver->stats->{connections} == 0; }, "$transport: no connection outlives its handler");
	is($node->dispatcher_pid, $dispatcher, "$transport: by one dispatcher");
	is($node->sql('SELECT * FROM outbox.verify()'), '', "$transport: nothing contradicts anything");
}

$node->stop;
done_testing();
