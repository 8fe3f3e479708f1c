# The recipes of doc/receivers.md for receivers in Node do what it says: one
# that verifies the bytes that came, whatever their content type, and one that
# has CloudEvents in binary mode decoded.
use strict;
use warnings;
use utf8;

use File::Basename qw(dirname);
use IO::Socket::INET;
use IPC::Run;
use JSON::PP ();
use OutboxCluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;
use UnitModule;
use Verifiers;

Verifiers->install or plan skip_all => Verifiers->missing;
my $unit = UnitModule->build;
my $node = OutboxCluster->create('recipes');
$unit->create_functions($node, 'postgres');
my $page = slurp_file(dirname(__FILE__) . '/../../doc/receivers.md');
my ($express) = $page =~ /^```js\n(const express.*?)^```$/ms;
my ($events) = $page =~ /^```js\n([^`]*?function eventOf.*?)^```$/ms;
my $folder = $node->basedir;
my $libraries = "$ENV{TESTDIR}/test/lib/node/node_modules";

sub write_file
{
	my ($name, $text) = @_;
	open my $out, '>:utf8', "$folder/$name" or die "$name: $!";
	print $out $text;
	close $out;
	return "$folder/$name";
}

# --- the raw body
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $url = "http://127.0.0.1:$port/hooks";
my %secret;
foreach my $format (qw(raw envelope cloudevents cloudevents-binary))
{
	# An own header content-type is what parsers of JSON would look for.
	$node->handler($format, ['a.b'], $url, format => $format, backoff => \"ARRAY['20 ms']::interval[]", max_attempts => 500, breaker_threshold => 0);
}
my $told = $node->sql("SELECT outbox.rotate_secret('raw')");
$node->sql("SELECT outbox.alter_handler('$_', secret => '$told')") foreach qw(envelope cloudevents cloudevents-binary);
$node->handler('other', ['a.b'], $url, max_attempts => 1, secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
my $receiver = IPC::Run::start([ 'node', write_file('receiver.js', $express) ], '<', \undef, '>&', \my $said,
	init => sub { @ENV{qw(SECRET PORT NODE_PATH)} = ($told, $port, $libraries) });
my $socket;
$node->wait_while_not(sub { $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) }, 'the receiver listens');
undef $socket;
$node->stage("a.b", q({"n": 1.0, "text": "naïve"}));
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state NOT IN ('delivered', 'dead')", 0, 'all are settled');
is($node->sql("SELECT string_agg(concat_ws(' ', handler, state, http_status), ', ' ORDER BY handler) FROM outbox.deliveries"),
	'cloudevents delivered 204, cloudevents-binary delivered 204, envelope delivered 204, other dead 400, raw delivered 204',
	'signatures of the bytes that came are good, in every format, and one by another secret is not') or diag($said);
$receiver->signal('TERM');
$receiver->finish;

# --- CloudEvents in binary mode
my $request = $unit->request($node, 'postgres', { handler => 'h', user_agent => 'outbox/1.0', format => 'cloudevents-binary' },
	[ { id => '0199c000-0000-7000-8000-000000000001', staged_at => '2025-10-09 08:53:20.5+00', topic => 'a.b', key => 'käse "1" 100%', payload => { n => 1 } } ], 'now');
my $script = write_file('event.js', $events . <<'END');
const request = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const event = eventOf(request.headers, request.body);
console.log(JSON.stringify([event.subject, event.source, event.type, event.data]));
END
my $json = JSON::PP->new->utf8->canonical;
my ($out, $error) = ('', '');
IPC::Run::run([ 'node', $script ], '<', \$json->encode({ headers => $request->{headers}, body => $request->{body} }), '>', \$out, '2>', \$error,
	init => sub { $ENV{NODE_PATH} = $libraries });
is($error, '', 'the event is read');
my $event = eval { $json->decode($out) } || [];
is($event->[0], 'käse "1" 100%', 'attributes are decoded');
is($event->[2], 'a.b', 'with its type');
is_deeply($event->[3], { n => 1 }, 'and its data');

$node->stop;
done_testing();
