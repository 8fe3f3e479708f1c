# Payloads that are texts or bytes: the receiver gets what the producer gave,
# to the byte, with its content type, in every format and in batches, small
# and large, signed as sent, over both transports, from databases of every
# kind of encoding.
use strict;
use warnings;
use utf8;

use Digest::SHA qw(hmac_sha256_base64 sha256_hex);
use Encode qw(decode encode);
use HttpReceiver;
use JSON::PP ();
use MIME::Base64 qw(decode_base64 encode_base64);
use OutboxCluster;
use Test::More;
use UnitModule;

my $receiver = HttpReceiver->start;
my $json = JSON::PP->new->utf8;
my @formats = qw(raw envelope cloudevents cloudevents-binary);
my $secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
my $node = OutboxCluster->create('main', conf => "outbox.max_payload_size = '16MB'");
my $unit = UnitModule->build;
$unit->create_functions($node, 'postgres');
local $ENV{PGCLIENTENCODING} = 'UTF8';

# --- embedded in JSON, written piece by piece: what PostgreSQL makes of them
is($node->sql("SELECT count(*) FROM (VALUES (''), ('plain'), (E'\"\\\\\\b\\f\\n\\r\\t\\x01\\x1f\\x7f/'), (repeat(E'a\"\\n\\x02', 20000)), (repeat('y', 100000)), (repeat(E'\\\\', 100000))) AS v (t), unnest(ARRAY[1, 2, 3, 100, 4096, 2147483647]) AS step WHERE unit.payload_text('text', convert_to(t, 'UTF8'), step) IS DISTINCT FROM to_json(t)::text"),
	0, 'a text becomes the JSON string that PostgreSQL makes of it');
is($node->sql("SELECT count(*) FROM (SELECT decode(substr(repeat(md5(n::text), 1 + n * 2 / 32), 1, n * 2), 'hex') AS b, n FROM unnest(ARRAY[0, 1, 2, 3, 4, 5, 6, 3071, 3072, 3073, 3074, 6144, 50000]) AS n) AS v, unnest(ARRAY[1, 2, 3, 100, 4096, 2147483647]) AS step WHERE unit.payload_text('bytes', b, step) IS DISTINCT FROM '\"' || translate(encode(b, 'base64'), E'\\n', '') || '\"'"),
	0, 'bytes become a string of their base64');

# --- content types
my %types = (
	'text/plain' => 'other', 'application/json' => 'json', 'APPLICATION/JSON' => 'json', 'text/json;charset=utf-8' => 'json', 'application/vnd.api+json; version=2' => 'json', 'application/jsonx' => 'other',
	'application/+json' => 'other', 'application/x-ndjson' => 'other', 'text/xml; charset=UTF-8' => 'other', 'text/xml; charset="utf-8"' => 'other', 'text/xml; charset="UTF\\-8"' => 'other', 'text/xml; Charset=latin1' => 'other, charset',
	'text/xml; charset="utf-88"' => 'other, charset', 'text/xml; charset=utf' => 'other, charset', 'text/xml; charset=""' => 'other, charset', 'a/b ; c=d;e="f g\\"h;/"' => 'other', "a/b;\tc=d" => 'other',
	map { $_ => '' } ('', 'text', 'text/', '/plain', 'text /plain', 'text/plain ', ' text/plain', 'text/plain;', 'text/plain; ', 'text/plain; a', 'text/plain; a=', 'text/plain; =b', 'text/plain; a="b', 'text/plain; a="b\\', 'text/plain; a="b"c', 'text/plain, text/html', "text/plain\r\nx-evil: 1", "text/plain; a=\"\r\n\"",
		"text/plain; a=\"\x01\"", 'text/plain; a=ü', 'text/plain; a="ü"', 'text/plain;; a=b'));
is_deeply({ map { $_ => $node->sql('SELECT unit.content_type(E' . $node->quote(encode('UTF-8', $_)) =~ s/^E?'/'/r . ')') } keys %types }, \%types, 'content types are read as HTTP writes them');

# --- everything there is, in every format
sub kinds
{
	my $words = shift;
	my $text = encode('UTF-8', $words);
	my $xml = qq{<?xml version="1.0"?>\n<much wow="$text">\t\\ &amp; "</much>};
	my $written = qq{{"b":1.0,\n  "a": [ 1e2 , "$text" ], "b": null}\n};
	my $every = join '', map { chr } 0 .. 255;
	my @kinds = (
		[ 'plain', 'text', $text, undef ],
		[ 'xml', 'text', $xml, 'application/xml' ],
		[ 'as json', 'text', $written, 'application/vnd.x+json; v=1' ],
		[ 'json scalar', 'text', ' "s"', 'application/json' ],
		[ 'empty text', 'text', '', 'text/csv; header=absent' ],
		[ 'control', 'text', join('', map { chr } 1 .. 31) . '"\\' . chr 127, undef ],
		[ 'bytes', 'bytes', $every, undef ],
		[ 'protobuf', 'bytes', "\x08\x96\x01\x12\x00", 'application/x-protobuf; messageType="x.Y"' ],
		[ 'empty bytes', 'bytes', '', undef ],
		[ 'json bytes', 'bytes', $written, 'application/json' ],
		[ 'latin1', 'bytes', encode('ISO-8859-1', 'naïve'), 'text/plain; charset=iso-8859-1' ]);
	# Right at the border behind which they are large, and far behind it.
	foreach my $len (65531 .. 65533, 65536, 65537)
	{
		push @kinds, [ "text of $len", 'text', substr('"' x 70000, 0, $len), undef ], [ "bytes of $len", 'bytes', substr($every x 300, 0, $len), undef ];
	}
	push @kinds, [ 'large text', 'text', $xml x 5000, 'application/xml' ], [ 'large json', 'text', "[\n" . join(",\n", ($written) x 4000) . ' ]', 'application/json' ], [ 'large bytes', 'bytes', $every x 1000 . 'x', undef ];
	return @kinds;
}

my %defaults = (text => 'text/plain; charset=utf-8', bytes => 'application/octet-stream');
my $folder = $node->basedir;

# Through files: what is here is no SQL text.
sub stage_kinds
{
	my ($database, $topic, @kinds) = @_;
	my @calls;
	foreach my $n (0 .. $#kinds)
	{
		my ($name, $kind, $payload, $type) = @{ $kinds[$n] };
		my $file = "$folder/payload.$n";
		open my $handle, '>:raw', $file or die "$file: $!";
		print $handle $payload;
		close $handle;
		my $argument = $kind eq 'bytes' ? "pg_read_binary_file('$file')" : "convert_from(pg_read_binary_file('$file'), '" . ($database eq 'ascii' ? 'SQL_ASCII' : 'UTF8') . "')";
		push @calls, "SELECT outbox.stage_$kind('$topic', $argument" . (defined $type ? ", '$type'" : '') . ", key => 'k$n');";
	}
	my @ids = split /\n/, $node->sql("@calls", $database);
	return map { $ids[$_] => $kinds[$_] } 0 .. $#kinds;
}

# What is wrong with a request; nothing is right.
sub fault
{
	my ($format, $request, $name, $kind, $payload, $type) = @_;
	$type //= $defaults{$kind};
	my $signed = "$request->{headers}{'webhook-id'}.$request->{headers}{'webhook-timestamp'}.$request->{body}";
	my $digest = hmac_sha256_base64($signed, decode_base64($secret =~ s/^whsec_//r));
	$digest .= '=' while length($digest) % 4;
	return 'signature' if $request->{headers}{'webhook-signature'} ne "v1,$digest";
	if ($format =~ /raw|binary/)
	{
		return "content-type $request->{headers}{'content-type'}" if $request->{headers}{'content-type'} ne $type;
		return 'length' if $request->{headers}{'content-length'} != length $payload;
		return 'body' if $request->{body} ne $payload;
		return 'no event' if $format ne 'raw' && ($request->{headers}{'ce-id'} // '') ne $request->{headers}{'webhook-id'};
		return '';
	}
	return 'content-type' if $request->{headers}{'content-type'} ne ($format eq 'envelope' ? 'application/json' : 'application/cloudevents+json');
	return item_fault($format, $json->decode($request->{body}), $request->{body}, $kind, $payload, $type);
}

sub item_fault
{
	my ($format, $item, $body, $kind, $payload, $type) = @_;
	my $named = $item->{ $format eq 'envelope' ? 'content_type' : 'datacontenttype' };
	return 'type ' . ($named // 'none') if ($named // '') ne $type;
	return 'both or none' if exists $item->{data} == exists $item->{data_base64};
	if ($kind eq 'bytes')
	{
		return 'data' unless exists $item->{data_base64};
		return $item->{data_base64} eq encode_base64($payload, '') ? '' : 'data_base64';
	}
	return 'data_base64' unless exists $item->{data};
	return index($body, "\"data\":$payload") >= 0 ? '' : 'JSON' if $type =~ /json/;
	return $item->{data} eq decode('UTF-8', $payload) ? '' : 'data';
}

my %words = (utf8 => 'äöü ß € 日本語 𝄞', latin1 => 'äöü ß é', euc_jp => '日本語 鍵', ascii => 'äöü € 日本語 𝄞');
my %encodings = (utf8 => 'UTF8', latin1 => 'LATIN1', euc_jp => 'EUC_JP', ascii => 'SQL_ASCII');
foreach my $run ((map { [ $_, 'fast' ] } sort keys %encodings), [ 'utf8', 'curl' ])
{
	my ($database, $transport) = @$run;
	my $name = "$database, $transport";
	if ($transport eq 'fast')
	{
		$node->safe_psql('postgres', "CREATE DATABASE $database ENCODING '$encodings{$database}' LOCALE 'C' TEMPLATE template0");
		$node->safe_psql($database, 'SET client_min_messages = warning; CREATE EXTENSION outbox');
		$node->handler($_, ['kind.*'], $receiver->url("/$database/$_"), format => $_, secret => $secret, database => $database) foreach @formats;
		foreach my $format (qw(raw cloudevents))
		{
			$node->handler("$format batch", ['batch.*'], $receiver->url("/$database/$format-batch"), format => $format, batch_size => 100, batch_wait => '2 s', secret => $secret, database => $database);
		}
	}
	else
	{
		$node->safe_psql($database, "ALTER DATABASE $database SET outbox.transport = 'curl'; SELECT pg_terminate_backend(pid) FROM outbox.dispatchers WHERE database = '$database'");
		$receiver->forget;
	}
	my @kinds = kinds($words{$database});
	my %ids = stage_kinds($database, 'kind.x', @kinds);
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'kind.x' AND state = 'delivered' AND message_id = ANY('{" . join(',', keys %ids) . "}')", @kinds * @formats, "$name: all are delivered", $database);
	foreach my $format (@formats)
	{
		my @requests = grep { $ids{ $_->{headers}{'webhook-id'} } } $receiver->requests("/$database/$format");
		is(scalar(@requests), scalar(@kinds), "$name, $format: each has come");
		my @wrong = map { my $of = $ids{ $_->{headers}{'webhook-id'} }; my $fault = fault($format, $_, @$of); $fault ? "$of->[0]: $fault" : () } @requests;
		is("@wrong", '', "$name, $format: as it was staged");
	}

	# A batch of them, with JSON in between.
	%ids = stage_kinds($database, 'batch.x', @kinds[ 0 .. 10 ], @kinds[ -3 .. -1 ]);
	$node->stage('batch.x', '{"n": 1}', database => $database);
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'batch.x' AND state = 'delivered' AND staged_at > now() - interval '10 minutes'" . ($transport eq 'curl' ? " AND message_id >= '" . (sort keys %ids)[0] . "'" : ''),
		2 * (1 + keys %ids), "$name: batches are delivered", $database);
	foreach my $format (qw(raw cloudevents))
	{
		my @wrong;
		my $n = 0;
		foreach my $request ($receiver->requests("/$database/$format-batch"))
		{
			foreach my $item (@{ $json->decode($request->{body}) })
			{
				my $of = $ids{ $item->{id} };
				$n++ if $of || $item->{data}{n};
				my $fault = $of ? item_fault($format eq 'raw' ? 'envelope' : $format, $item, $request->{body}, $of->[1], $of->[2], $of->[3] // $defaults{ $of->[1] }) : exists $item->{content_type} ? 'a content type of JSON' : '';
				push @wrong, "$of->[0]: $fault" if $fault;
			}
		}
		is("$n @wrong", 1 + keys(%ids) . ' ', "$name: each in a batch of $format");
	}
}

# --- a handler's own content type is of its JSON
$node->handler('typed', ['typed'], $receiver->url('/typed'), headers => '{"content-type": "application/x-own+json"}');
$node->sql("SELECT outbox.stage('typed', '1'), outbox.stage_text('typed', 't'), outbox.stage_bytes('typed', 'b', 'image/png')");
ok($receiver->wait_for_requests(3, '/typed'), 'sent to a handler with a content type of its own');
is(join(', ', sort map { "$_->{body} $_->{headers}{'content-type'}" } $receiver->requests('/typed')), '1 application/x-own+json, b image/png, t text/plain; charset=utf-8', 'a message that has its own goes by that');

# --- put in by hand: nothing of it can forge a header, and what has no payload concerns nobody else
my $id = $node->sql("SELECT outbox.stage_text('typed', 'later', delay => '1 hour')");
$node->sql("UPDATE outbox.message SET content_type = E'text/plain\\r\\nx-evil: 1' WHERE id = '$id'; SELECT outbox.retry_now('$id', 'typed')");
ok($receiver->wait_for_requests(4, '/typed'), 'one with a content type that is none');
is(($receiver->requests('/typed'))[-1]{headers}{'content-type'}, 'text/plain%0D%0Ax-evil: 1', 'is sent without a line of its own');
$id = $node->sql("SELECT outbox.stage_text('typed', 'nothing', delay => '1 hour')");
$node->sql("UPDATE outbox.message SET payload_text = NULL WHERE id = '$id'; SELECT outbox.retry_now('$id', 'typed')");
$node->wait_for("SELECT code || ': ' || error FROM outbox.dead_letters WHERE message_id = '$id'", 'unreadable: message has no payload', 'one without a payload is a dead letter');

# --- what UTF-8 does not have: a text in SQL_ASCII, in every shape; bytes are nobody's to judge
$node->sql("SELECT outbox.stage_text('kind.bad', E'na\\xefve'), outbox.stage_text('kind.bad', repeat('x', 100000) || E'na\\xefve'), outbox.stage_bytes('kind.good', '\\xef')", 'ascii');
$node->wait_for("SELECT count(*) FROM outbox.dead_letters WHERE topic = 'kind.bad' AND code = 'unreadable' AND error LIKE 'invalid byte sequence%'", 2 * @formats, 'a text that is not UTF-8 becomes a dead letter', 'ascii');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'kind.good' AND state = 'delivered'", scalar(@formats), 'bytes do not', 'ascii');

# --- the function that settles gets them too
$node->safe_psql('postgres', <<'END');
CREATE ROLE settling;
CREATE SCHEMA settling AUTHORIZATION settling;
SET ROLE settling;
CREATE TABLE settling.seen (topic text, payload jsonb, content_type text, payload_text text, payload_bytes bytea);
CREATE FUNCTION settling.note(s outbox.settlement) RETURNS void LANGUAGE sql AS $$ INSERT INTO settling.seen VALUES (s.topic, s.payload, s.content_type, s.payload_text, s.payload_bytes) $$;
END
$node->handler('settled', ['settled.*'], $receiver->url('/settled'), on_settle => 'settling.note(outbox.settlement)');
$node->sql("SELECT outbox.stage('settled.a', '1'), outbox.stage_text('settled.b', 'ü'), outbox.stage_bytes('settled.c', '\\x00ff', 'a/b')");
$node->wait_for("SELECT string_agg(concat_ws(' ', topic, payload, content_type, payload_text, payload_bytes), ', ' ORDER BY topic) FROM settling.seen",
	'settled.a 1, settled.b text/plain; charset=utf-8 ' . encode('UTF-8', 'ü') . ', settled.c a/b \x00ff', 'on_settle functions get them');

# --- a format that changes while large ones wait and while they are out
$receiver->on('/change', { hang => 1 });
$node->handler('change', ['change'], $receiver->url('/change'), concurrency => 2, timeout => '60 s');
$node->sql("SELECT outbox.stage_bytes('change', decode(repeat('00ff', 50000 + n), 'hex')) FROM generate_series(1, 4) AS n");
ok($receiver->wait_for_requests(2, '/change'), 'large ones are out, and others wait');
$node->sql("SELECT outbox.alter_handler('change', format => 'envelope')");
$receiver->on('/change', { status => 503 }, { status => 503 }, {});
$receiver->release('/change');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'change' AND state = 'delivered'", 4, 'all are delivered');
my @changed = grep { $_->{headers}{'content-type'} eq 'application/json' } $receiver->requests('/change');
is(scalar(grep { length(decode_base64($json->decode($_->{body})->{data_base64})) >= 100000 } @changed), scalar(@changed), 'those of the new format look like it');
cmp_ok(scalar(@changed), '>=', 2, 'of which there are some');

# --- megabytes, with memory for one of them at a time
$node->sql("ALTER DATABASE postgres SET outbox.max_memory = '16MB'; SELECT pg_terminate_backend(pid) FROM outbox.dispatchers WHERE database = 'postgres'");
$node->handler("great $_", ['great'], $receiver->url("/great/$_"), format => $_, timeout => '120 s') foreach qw(raw envelope);
$node->sql("SELECT outbox.stage_bytes('great', decode(repeat(md5('x'), 256 * 1024) || repeat(md5('y'), 256 * 1024), 'hex')), outbox.stage_text('great', repeat(E'naïve \"x\" \\\\ ', 512 * 1024))");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'great' AND state = 'delivered'", 4, 'payloads of 8 MB are delivered');
my ($sha) = split /\n/, $node->sql("SELECT payload_bytes_sha256 FROM outbox.messages WHERE topic = 'great' AND payload_text IS NULL");
is(join(' ', map { sha256_hex($_->{body}) } grep { $_->{headers}{'content-type'} =~ /octet/ } $receiver->requests('/great/raw')), $sha, 'bytes are those that the view names');
is(join(' ', map { $_->{body} =~ /"data_base64":"([^"]+)"\}\z/ ? sha256_hex(decode_base64($1)) : () } $receiver->requests('/great/envelope')), $sha, 'in an envelope as well');
is(join(' ', map { $_->{body} =~ /"data":"(.*)"\}\z/s && $1 eq encode('UTF-8', 'naïve \"x\" \\\\ ') x (512 * 1024) ? 'right' : () } $receiver->requests('/great/envelope')), 'right', 'and so is a text, as a JSON string');

# --- dump and restore
my $contents = "SELECT md5(string_agg(concat_ws(',', id, payload, content_type, payload_text, encode(payload_bytes, 'hex')), ' ' ORDER BY id)) FROM outbox.message WHERE topic <> 'kind.bad'";
$node->safe_psql('postgres', 'CREATE DATABASE restored TEMPLATE template0 ENCODING UTF8');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$folder/dump", $node->connstr('utf8') ], 'dumped');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('restored'), "$folder/dump" ], 'restored');
is($node->sql($contents, 'restored'), $node->sql($contents, 'utf8'), 'every payload is what it was');

$node->stop;
done_testing();
