# Large payloads are written in slices and sent in parts: whatever is in them
# arrives as a small one would, to the byte, in every format, over both
# transports, from databases of every kind of encoding.
use strict;
use warnings;
use utf8;

use Encode qw(encode);
use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $json = JSON::PP->new->utf8->allow_bignum;
my @formats = qw(raw envelope cloudevents cloudevents-binary);

# Values, as JSON, of which each is sent by itself and among others.
my %corpus = (
	words => '["", "plain", "\"quoted\" \\\\ / \b\f\n\r\t \u0001\u001f\u007f", "a\\\\u0041"]',
	numbers => '[0, -1.50, 1e30, 1e-30, 12345678901234567890.0987654321, 1e400]',
	nesting => '[[], {}, [[]], [{}], {"a": {}}, {"": [null, true, false, {"b": [1, [2, [3, {"c": []}]]]}]}, [[[[[[[[[[1]]]]]]]]], 2]]',
	scalar => '"x"');
my %words = (
	utf8 => '["äöü ß €", "日本語", "𝄞", {"ключ": "значение"}]',
	latin1 => '["äöü ß é", {"né": "ÿ"}]',
	euc_jp => '["日本語", {"鍵": "値、漢字"}]',
	ascii => '["äöü ß €", "日本語", "𝄞"]');

# What makes a value large: text of one byte a character and of several, cut anywhere; many tokens; one long number.
my %fillers = (
	text => sub { "to_jsonb(repeat('x', 99991) || '$_[0]')" },
	characters => sub { "to_jsonb(repeat('$_[0]', 40000 / length('$_[0]')) || repeat('y\"', 20000))" },
	tokens => sub { "(SELECT jsonb_agg(jsonb_build_object('n', g, 'a', ARRAY[g * 1.07, NULL], 't', md5(g::text), '$_[0]', '$_[0]')) FROM generate_series(1, 5000) AS g)" },
	numbers => sub { "jsonb_build_array(repeat('7', 100000)::numeric, repeat('x', 70000), 1e1000::numeric, repeat('8', 131000)::numeric)" });

sub value
{
	my ($node, $database, $text) = @_;
	return $node->quote($text) . '::jsonb';
}

my $node = OutboxCluster->create('main', extension => 0, conf => "outbox.max_payload_size = '64MB'");
my %encodings = (utf8 => 'UTF8', latin1 => 'LATIN1', euc_jp => 'EUC_JP', ascii => 'SQL_ASCII');

# The bodies that a handler got, by message id.
sub bodies
{
	my $path = shift;
	return { map { ($_->{headers}{'outbox-batch'} ? $_->{headers}{'outbox-topic'} : $_->{headers}{'webhook-id'}) => $_->{body} } $receiver->requests($path) };
}

# Is it the payload, in what the format puts around it?
sub is_right
{
	my ($format, $body, $payload, $id) = @_;
	return $body eq $payload if $format =~ /raw|binary/;
	return 0 unless substr($body, -length($payload) - 1) eq "$payload}";
	my $rest = $json->decode(substr($body, 0, -length($payload) - 1) . 'null}');
	return $rest->{id} eq $id && exists $rest->{data};
}

foreach my $database (sort keys %encodings)
{
	local $ENV{PGCLIENTENCODING} = 'UTF8';
	$node->safe_psql('postgres', "CREATE DATABASE $database ENCODING '$encodings{$database}' LOCALE 'C' TEMPLATE template0");
	$node->safe_psql($database, 'SET client_min_messages = warning; CREATE EXTENSION outbox');
	foreach my $format (@formats)
	{
		$node->handler($format, ['large.*'], $receiver->url("/$database/$format"), format => $format, secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', database => $database);
	}
	$node->handler('batch', ['batch.*'], $receiver->url("/$database/batch"), batch_size => 5, batch_wait => '2 s', database => $database);

	my @values = map { encode('UTF-8', $_) } (values %corpus, $words{$database});
	my $word = encode('UTF-8', $database eq 'euc_jp' ? '漢字' : 'é');
	my @sql = map { "jsonb_build_array($_, repeat('x', 70000))" } map { value($node, $database, $_) } @values;
	push @sql, map { $fillers{$_}->($word) } sort keys %fillers;
	push @sql, "jsonb_build_object('first', $sql[0], 'all', jsonb_build_array(" . join(', ', @sql) . '))';
	# And right at the border, where one is large and the other is not.
	push @sql, map { "to_jsonb(repeat('z', 65536 - $_))" } 4 .. 20;
	$node->safe_psql($database, "SELECT outbox.stage('large.x', $_)") foreach @sql;
	$node->safe_psql($database, "SELECT count(outbox.stage('batch.x', p)) FROM unnest(ARRAY[" . join(', ', @sql[ 0 .. 2 ], "'1'", "'2'") . ']::jsonb[]) AS p');
	my $expected = @sql * @formats + 5;
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", $expected, "$database: all are delivered", $database);

	my %payload;
	foreach my $line (split /\n/, $node->safe_psql($database, "SELECT id || ' ' || encode(" .
		($database eq 'ascii' ? "convert_to(payload::text, 'SQL_ASCII')" : "convert_to(payload::text, 'UTF8')") .
		", 'hex') FROM outbox.message ORDER BY id"))
	{
		my ($id, $hex) = split / /, $line;
		$payload{$id} = pack 'H*', $hex;
	}
	foreach my $format (@formats)
	{
		my $bodies = bodies("/$database/$format");
		my @wrong = grep { !is_right($format, $bodies->{$_}, $payload{$_}, $_) } keys %$bodies;
		is(scalar(keys %$bodies), scalar(@sql), "$database, $format: each has come");
		is("@wrong", '', "$database, $format: as it was staged");
	}
	my @batches = map { $json->decode($_->{body}) } $receiver->requests("/$database/batch");
	is(scalar(map { @$_ } @batches), 5, "$database: batches have some of each");
}

# --- what UTF-8 does not have is not sent, and concerns nobody else
$node->safe_psql('ascii', "SELECT outbox.stage('large.bad', jsonb_build_array(repeat('x', 100000), E'na\\xefve', repeat('x', 100000)))");
$node->safe_psql('ascii', "SELECT outbox.stage('large.good', to_jsonb(repeat('x', 100000)))");
$node->wait_for("SELECT DISTINCT code FROM outbox.deliveries WHERE topic = 'large.bad' AND state = 'dead'", 'unreadable', 'what is not UTF-8 becomes a dead letter', 'ascii');
like($node->safe_psql('ascii', "SELECT DISTINCT error FROM outbox.dead_letters WHERE topic = 'large.bad'"), qr/invalid byte sequence for encoding "UTF8": 0xef/, 'which says why');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'large.good' AND state = 'delivered'", scalar(@formats), 'others are sent', 'ascii');

# --- a message that is gone when its payload is wanted
$receiver->on('/gone', { hang => 1 });
$node->handler('gone', ['gone.*'], $receiver->url('/gone'), concurrency => 1, database => 'utf8');
$node->safe_psql('utf8', "SELECT outbox.stage('gone.first', '{}')");
ok($receiver->wait_for_requests(1, '/gone'), 'a request is out');
my $id = $node->safe_psql('utf8', "SELECT outbox.stage('gone.x', to_jsonb(repeat('x', 100000)))");
$node->safe_psql('utf8', "SELECT outbox.stage('gone.last', to_jsonb(repeat('x', 100000)))");
$node->safe_psql('utf8', "SELECT outbox.stage('large.seen', '{}')");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'large.seen' AND state = 'delivered'", scalar(@formats), 'the dispatcher has read behind it', 'utf8');
$node->safe_psql('utf8', "DELETE FROM outbox.message WHERE id = '$id'");
$receiver->release('/gone');
$node->wait_for("SELECT code FROM outbox.receipt WHERE message_id = '$id'", 'message_missing', 'it is a dead letter', 'utf8');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic LIKE 'gone.%' AND state = 'delivered'", 2, 'those around it are delivered', 'utf8');

# --- cancelled while it waits for its payload: it is not sent
$receiver->on('/gone', { hang => 1 });
$receiver->forget;
$node->safe_psql('utf8', "SELECT outbox.stage('gone.first', '{}')");
ok($receiver->wait_for_requests(1, '/gone'), 'a request is out');
$id = $node->safe_psql('utf8', "SELECT outbox.stage('gone.x', to_jsonb(repeat('x', 100000)))");
$node->safe_psql('utf8', "SELECT outbox.cancel('$id')");
$node->safe_psql('utf8', "SELECT outbox.stage('gone.last', '1')");
$receiver->release('/gone');
ok($receiver->wait_for_requests(2, '/gone'), 'the next one is sent');
is(scalar(grep { $_->{headers}{'webhook-id'} eq $id } $receiver->requests('/gone')), 0, 'and not the one that was cancelled');

# --- libcurl's transfers
$node->safe_psql('utf8', "ALTER DATABASE utf8 SET outbox.transport = 'curl'; SELECT pg_terminate_backend(pid) FROM outbox.dispatchers WHERE database = 'utf8'");
$receiver->forget;
$node->safe_psql('utf8', "SELECT count(outbox.stage('large.curl', (SELECT jsonb_agg(md5(g::text || n::text)) FROM generate_series(1, 30000) AS g))) FROM generate_series(1, 3) AS n");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'large.curl' AND state = 'delivered'", 3 * @formats, 'curl: all are delivered', 'utf8');
my %payload = map { split / /, $_, 2 } split /\n/, $node->safe_psql('utf8', "SELECT id || ' ' || payload::text FROM outbox.message WHERE topic = 'large.curl'");
foreach my $format (@formats)
{
	my $bodies = bodies("/utf8/$format");
	is(scalar(grep { is_right($format, $bodies->{$_} // '', $payload{$_}, $_) } keys %payload), 3, "curl, $format: as it was staged");
}

$node->stop;
done_testing();
