# When a changed setting is in force, as doc/settings.md says of each: after a reload
# where dispatchers read it, in new sessions where sessions do, and where both
# do, for each of them so.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');
$node->handler('h', ['h.*'], $receiver->url('/h'));
my $dispatcher = $node->dispatcher_pid;
my $session = PsqlSession->new($node);
my $large = q{SELECT status FROM outbox.try_stage('large', jsonb_build_object('x', repeat('x', 2000)))};

sub agent
{
	my $count = $receiver->count('/h');
	$node->stage('h.x', '{}');
	$receiver->wait_for_requests($count + 1, '/h') or return '';
	return ($receiver->requests('/h'))[-1]{headers}{'user-agent'};
}

# reload, wherever the change was made
my $built_in = 'outbox/' . $node->sql(q{SELECT default_version FROM pg_available_extensions WHERE name = 'outbox'});
is(agent(), $built_in, 'the user agent as it is built in');
$node->sql(q{ALTER DATABASE postgres SET outbox.user_agent = 'of the database'});
is(agent(), $built_in, 'ALTER DATABASE alone changes nothing for the dispatcher');
$node->sql('SELECT pg_reload_conf()');
$node->wait_while_not(sub { agent() eq 'of the database' }, 'with a reload it is in force');
$node->sql('ALTER DATABASE postgres RESET outbox.user_agent');
$node->append_conf('postgresql.conf', "outbox.user_agent = 'of the server'");
$node->reload;
$node->wait_while_not(sub { agent() eq 'of the server' }, 'so is one of the configuration file');

# session
is($session->run($large), 'created', 'a payload that may be as large');
$node->sql(q{ALTER DATABASE postgres SET outbox.max_payload_size = '1kB'});
$node->sql('SELECT pg_reload_conf()');
is($node->sql($large), 'invalid', 'ALTER DATABASE: a new session obeys');
is($session->run($large), 'created', 'one that was there before does not, reload or not');
$node->sql('ALTER DATABASE postgres RESET outbox.max_payload_size');
$node->append_conf('postgresql.conf', q{outbox.max_payload_size = '1kB'});
$node->reload;
$node->wait_while_not(sub { $session->run($large) eq 'invalid' }, 'in the configuration file: with a reload all sessions obey');

# start
$node->append_conf('postgresql.conf', q{outbox.transport = 'curl'});
$node->reload;
is(agent(), 'of the server', 'requests go out');
is($node->dispatcher_pid, $dispatcher, 'from the same dispatcher all the time');

$session->close;
done_testing();
