# doc/migrating.md: changing over from a hand-written outbox table while
# producers and pollers are at work, and from pg_net.  (graphile-worker and
# pg-boss: suite npm.)
use strict;
use warnings;

use HttpReceiver;
use IPC::Run;
use OutboxCluster;
use PsqlSession;
use Recipes;
use Test::More;

my $page = Recipes->read('doc/migrating.md');
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');

# A database with the old outbox, its poller's function, and the handler that
# is there before anything is staged.
sub old_outbox
{
	my ($database, %options) = @_;
	$node->extension($database);
	$node->sql($page->text('poller/old.sql'), $database);
	$node->handler('new', ['shop.*'], $receiver->url("/$database"), database => $database, %options);
	# What the old poller sends is noted in its transaction, as if the receiver were asked.
	$node->sql(q{CREATE TABLE published (id bigint, aggregate_id text)}, $database);
	return;
}
my $lock = q{SELECT count(*) FROM (SELECT id FROM shop.outbox_events WHERE published_at IS NULL AND available_at <= now() ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED) s};
my $poll = q{WITH batch AS MATERIALIZED (SELECT id FROM shop.outbox_events WHERE published_at IS NULL AND available_at <= now() ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED),
	done AS (UPDATE shop.outbox_events SET published_at = now() WHERE id IN (SELECT id FROM batch) RETURNING id, aggregate_id)
	INSERT INTO published SELECT id, aggregate_id FROM done} =~ s/\s+/ /gr;
my $produce = q{INSERT INTO shop.outbox_events (topic, aggregate_id, payload) VALUES ('shop.order.placed', 'k' || %s, '{"n": 1}')};

# --- step by step: a poller that is publishing, one that gives back
old_outbox('steps');
$node->sql(sprintf($produce, $_), 'steps') foreach 1 .. 5;
$node->sql(q{INSERT INTO shop.outbox_events (topic, aggregate_id, payload, available_at) VALUES ('shop.order.placed', 'later', '{}', '2090-01-01')}, 'steps');
my ($writer, $poller, $failing, $mover) = map { PsqlSession->new($node, 'steps') } 1 .. 4;
$writer->run('BEGIN; ' . sprintf($produce, 6));
my $forwarder = PsqlSession->new($node, 'steps');
$forwarder->start($page->text('poller/forward.sql'));
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE datname = 'steps' AND wait_event_type = 'Lock'", 1, 'the trigger waits for who is writing', 'steps');
$writer->run('COMMIT');
unlike($forwarder->finish, qr/ERROR/, 'and is there then');
$node->sql(sprintf($produce, 7), 'steps');
is($poller->run("BEGIN; $lock"), 2, 'a poller takes two');
is($failing->run("BEGIN; $lock"), 2, 'another one the next two');
$mover->start($page->text('poller/move.sql'));
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE datname = 'steps' AND wait_event_type = 'Lock'", 1, 'moving waits for them', 'steps');
$failing->run('ROLLBACK');
$poller->run(q{INSERT INTO published SELECT id FROM shop.outbox_events WHERE id IN (1, 2); UPDATE shop.outbox_events SET published_at = now() WHERE id IN (1, 2); COMMIT});
is($mover->finish, 5, 'and takes what was given back, and what nobody had');
is($node->sql("SELECT string_agg(headers ->> 'x-event-id', ' ' ORDER BY (headers ->> 'x-event-id')::int) FROM outbox.message", 'steps'), '3 4 5 6 7 8', 'each event is on one side');
is($node->sql($page->text('poller/move.sql'), 'steps'), 0, 'moving again moves nothing');
is($node->sql("SELECT d.due_at = '2090-01-01' FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE m.key = 'later'", 'steps'), 't', 'what was for later is');
$receiver->wait_for_requests(5, '/steps');
$_->close foreach $writer, $poller, $failing, $mover, $forwarder;

# --- under load
my $folder = $node->basedir;
sub write_file
{
	my ($name, $text) = @_;
	open my $out, '>', "$folder/$name" or die "$folder/$name: $!";
	print $out "$text;\n";
	close $out;
	return "$folder/$name";
}
my $producing = write_file('produce.sql', sprintf $produce, ':client_id');
my $polling = write_file('poll.sql', $poll);
sub load
{
	my ($database, @scripts) = @_;
	my $said = '';
	my $load = IPC::Run::start([ 'pgbench', '-n', '-c', 4, '-j', 1, '-t', 500, map { ('-f', $_) } @scripts ], '<', \undef, '>&', \$said,
		init => sub { @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, $database) });
	$node->wait_for('SELECT count(*) > 100 FROM shop.outbox_events', 't', "$database: there is load", $database);
	return ($load, \$said);
}
my $once = q{SELECT count(*) = count(DISTINCT id) AND count(*) = (SELECT count(*) FROM shop.outbox_events)
	FROM (SELECT id FROM published UNION ALL SELECT (headers ->> 'x-event-id')::bigint FROM outbox.message) s};

old_outbox('load');
my ($load, $said) = load('load', "$producing\@3", "$polling\@1");
$node->sql($page->text('poller/forward.sql'), 'load');
my $moved = $node->sql($page->text('poller/move.sql'), 'load');
ok($load->finish, 'load: nobody fails') or diag($$said);
cmp_ok($moved, '>', 0, "load: $moved are moved");
is($node->sql($page->text('poller/move.sql'), 'load'), 0, 'load: nothing is left');
is($node->sql($once, 'load'), 't', 'load: every event went out on one side, once');
cmp_ok($node->sql('SELECT count(*) FROM outbox.message', 'load'), '>', $moved, 'load: and new ones on the new one');
$node->wait_for('SELECT count(*) FROM outbox.delivery', 0, 'load: all are delivered', 'load');
my %seen;
$seen{ $_->{headers}{'x-event-id'} }++ foreach $receiver->requests('/load');
is(scalar(keys %seen), $node->sql('SELECT count(*) FROM outbox.message', 'load'), 'load: with their old ids');

# --- in order
old_outbox('ordered', ordered => 'true');
$node->sql(sprintf($produce, 0), 'ordered') foreach 1 .. 20;
($load, $said) = load('ordered', $producing);
$node->sql($page->text('poller/switch.sql'), 'ordered');
ok($load->finish, 'in order: nobody fails') or diag($$said);
is($node->sql($once, 'ordered'), 't', 'in order: every event is staged, once');
is($node->sql(q{SELECT bool_and(before IS NULL OR before < event) FROM (SELECT (headers ->> 'x-event-id')::bigint AS event, lag((headers ->> 'x-event-id')::bigint) OVER (PARTITION BY key ORDER BY id) AS before FROM outbox.message) s}, 'ordered'),
	't', 'in order: old and new of a key are in the order of the old ids');

# --- pg_net: a schema of the same shape, whose worker never comes
$node->extension('net');
$node->sql(<<'END', 'net');
CREATE SCHEMA net;
CREATE DOMAIN net.http_method AS text CHECK (VALUE ILIKE 'get' OR VALUE ILIKE 'post');
CREATE UNLOGGED TABLE net.http_request_queue (id bigserial, method net.http_method NOT NULL, url text NOT NULL, headers jsonb NOT NULL, body bytea, timeout_milliseconds int NOT NULL);
CREATE FUNCTION net.http_post(url text, body jsonb DEFAULT '{}', params jsonb DEFAULT '{}', headers jsonb DEFAULT '{"Content-Type": "application/json"}', timeout_milliseconds int DEFAULT 5000)
RETURNS bigint LANGUAGE sql AS $$
	INSERT INTO net.http_request_queue (method, url, headers, body, timeout_milliseconds)
	VALUES ('POST', url, headers, convert_to(body::text, 'UTF8'), timeout_milliseconds) RETURNING id
$$;
END
my $here = sub { my $sql = $page->text($_[0]); my $url = $receiver->url('/hooks'); $sql =~ s{https://billing\.example/hooks}{$url}g; return "SET client_min_messages = error; $sql"; };
$node->sql($here->('pg_net/old.sql'), 'net');
$node->sql(q{INSERT INTO shop.invoice VALUES (1, 99.50), (2, 7); UPDATE shop.invoice SET amount = 8 WHERE id = 2; SELECT net.http_post('https://other.example/')}, 'net');
$node->sql($here->('pg_net/new.sql'), 'net');
$node->sql('INSERT INTO shop.invoice VALUES (3, 1)', 'net');
is($node->sql($here->('pg_net/move.sql'), 'net'), 3, 'pg_net: what waited is moved');
is($node->sql('SELECT string_agg(url, $$ $$) FROM net.http_request_queue', 'net'), 'https://other.example/', 'pg_net: and nothing else');
$receiver->wait_for_requests(4, '/hooks');
my @requests = sort { $a->{body} cmp $b->{body} } $receiver->requests('/hooks');
is(join(', ', map { $_->{headers}{'outbox-topic'} . ' ' . $_->{headers}{'outbox-key'} } @requests),
	'shop.invoice.insert 1, shop.invoice.insert 2, shop.invoice.insert 3, shop.invoice.update 2', 'pg_net: topics and keys');
is($requests[0]{body}, '{"type": "INSERT", "record": {"id": 1, "amount": 99.50}}', 'pg_net: the same body');
is($requests[0]{headers}{authorization}, 'Bearer s3cret', 'pg_net: and credentials');

$node->stop;
done_testing();
