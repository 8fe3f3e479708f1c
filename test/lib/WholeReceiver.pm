# What every receiver of doc/recipes/whole-receivers.md has to do, in whatever
# language: verify, do the work once, say what becomes of a message.
package WholeReceiver;

use strict;
use warnings;

use Digest::SHA qw(hmac_sha256_base64);
use IO::Socket::INET;
use IPC::Run;
use MIME::Base64 qw(decode_base64);
use Recipes;
use Test::More;

# A database for receivers, and a handler for each that is tried.
sub prepare
{
	my $node = shift;
	$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'");
	$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
	$node->restart;
	$node->sql('CREATE DATABASE receiver');
	$node->sql(Recipes->read('doc/recipes/whole-receivers.md')->text('receiver.sql'), 'receiver');
	return;
}

# Send a request by hand; the status of the answer.
sub post
{
	my ($port, $secret, %with) = @_;
	my ($id, $timestamp, $body) = ($with{id}, $with{timestamp} // time, $with{body});
	my $signature = hmac_sha256_base64("$id.$timestamp.$body", decode_base64($secret =~ s/^whsec_//r));
	$signature .= '=' while length($signature) % 4;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or return "no connection: $!";
	$body = $with{changed} if defined $with{changed};
	my $signed = defined $with{signature} ? $with{signature} : "v1,AAAA v1,$signature";
	print $socket "POST /hooks HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\nwebhook-id: $id\r\n"
	  . "webhook-timestamp: $timestamp\r\nwebhook-signature: $signed\r\ncontent-length: @{[ length $body ]}\r\n\r\n$body";
	return (<$socket> // '') =~ /^HTTP\S+ (\d+)/ ? $1 : 'no answer';
}

# Run the receiver with its command, and all that may come to it.
sub try
{
	my ($node, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $url = "http://127.0.0.1:$port/hooks";
	my $handler = "to_$name";
	$node->handler($handler, ['invoice.paid'], $url, backoff => \"ARRAY['100 ms']::interval[]", max_attempts => 500);
	my $secret = $node->sql("SELECT outbox.rotate_secret('$handler')");
	my %env = (PGHOST => '127.0.0.1', PGPORT => $node->port, PGDATABASE => 'receiver', PGUSER => scalar(getpwuid $>), SECRET => $secret, PORT => $port);
	my $said = '';
	my $receiver = IPC::Run::start($options{command}, '<', \undef, '>&', \$said, init => sub { chdir $options{in}; @ENV{ keys %env } = values %env; });
	my $socket;
	$node->wait_while_not(sub { $receiver->pump_nb; $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) }, "$name: it listens") or diag($said);
	undef $socket;

	$node->sql('TRUNCATE seen, invoice; INSERT INTO invoice (id) VALUES (42)', 'receiver');
	my $state = sub { $node->sql("SELECT concat_ws(' ', state, code, CASE WHEN attempts = 1 THEN 'once' ELSE 'again' END) FROM outbox.deliveries WHERE handler = '$handler' AND message_id = '$_[0]'") };
	my $paid = sub { $node->sql("SELECT paid FROM invoice WHERE id = $_[0]", 'receiver') };
	my $settled = sub { my ($id, $what) = @_; $node->wait_for("SELECT state IN ('delivered', 'dead') FROM outbox.deliveries WHERE handler = '$handler' AND message_id = '$id'", 't', "$name: $what") };

	my $id = $node->stage('invoice.paid', '{"invoice": 42, "amount": "99.50"}');
	$settled->($id, 'a message is settled');
	is($state->($id), 'delivered once', "$name: delivered");
	$node->sql("SELECT outbox.requeue_where(handler => '$handler', include_delivered => true)");
	$settled->($id, 'it is sent again');
	$node->wait_for("SELECT attempts FROM outbox.deliveries WHERE handler = '$handler' AND message_id = '$id'", 2, "$name: with the next attempt");
	is($state->($id), 'delivered again', "$name: and taken again");
	is($paid->(42), '99.50', "$name: the work was done once");

	my $bad = $node->stage('invoice.paid', '{"invoice": 42, "amount": "much"}');
	$settled->($bad, 'one that can never be taken is settled');
	is($state->($bad), 'dead 22P02 once', "$name: at once");

	my $early = $node->stage('invoice.paid', '{"invoice": 43, "amount": "1"}');
	$node->wait_for("SELECT code FROM outbox.deliveries WHERE handler = '$handler' AND message_id = '$early'", 'no_invoice', "$name: one that comes too early is told so");
	$node->sql('INSERT INTO invoice (id) VALUES (43)', 'receiver');
	$settled->($early, 'and taken later');
	is($paid->(43), '1', "$name: once");

	my %good = (id => '0199c000-0000-7000-8000-000000000001', body => '{"invoice":42,"amount":"0.50"}');
	is(post($port, $secret, %good, signature => 'v1,' . 'A' x 43 . '='), 400, "$name: a wrong signature is refused");
	is(post($port, $secret, %good, signature => ''), 400, "$name: none as well");
	is(post($port, $secret, %good, changed => '{"invoice":42,"amount":"9.50"}'), 400, "$name: a changed body");
	is(post($port, $secret, %good, timestamp => time - 3600), 400, "$name: a request that is repeated after an hour");
	is(post($port, $secret, %good, timestamp => time + 3600), 400, "$name: or was signed in an hour");
	is(post($port, 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', %good), 400, "$name: another's secret");
	is($paid->(42), '99.50', "$name: nothing was done for these");
	is(post($port, $secret, %good), 204, "$name: a good one among several signatures");
	is($paid->(42), '100.00', "$name: was done");
	$node->sql('ALTER TABLE invoice RENAME TO away', 'receiver');
	is(post($port, $secret, %good, id => '0199c000-0000-7000-8000-000000000002'), 500, "$name: what goes wrong otherwise is 500");
	$node->sql('ALTER TABLE away RENAME TO invoice', 'receiver');
	is(post($port, $secret, %good, id => '0199c000-0000-7000-8000-000000000002'), 204, "$name: and the same message good later");
	is($paid->(42), '100.50', "$name: and done");

	$receiver->signal('TERM');
	$receiver->finish;
	$node->sql("SELECT outbox.drop_handler('$handler')");
	return;
}

1;
