# outbox.report(): a page that is well-formed whatever is in it, that shows what
# is there and no markup of anybody else, and the worst ten of many; drawn by a
# Chromium where there is one.
use strict;
use warnings;
use utf8;

use Encode qw(decode encode);
use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use PostgreSQL::Test::Utils qw(append_to_file);
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir;
append_to_file("$dir/read.py", <<'END');
# What a page says: its tags, and each section by its title.
import json, sys, xml.etree.ElementTree as tree
page = tree.fromstring(sys.stdin.buffer.read())
text = lambda e: "".join(e.itertext())
sections = {}
for s in page.iter("section"):
    title = s.find("h2")
    sections[title.text.strip()] = {
        "note": "".join(text(n) for n in title.findall("small")),
        "rows": [[text(c) for c in r.findall("td")] for r in s.iter("tr") if r.find("td") is not None],
        "rest": "".join(text(p) for p in s.findall("p") if p.get("class") in ("rest", "nothing")),
        "bars": [g.find("title").text for g in s.iter("g")]}
print(json.dumps({"tags": sorted({e.tag for e in page.iter()}), "sections": sections,
    "attributes": sorted({a for e in page.iter() for a in e.attrib}),
    "status": text(next(e for e in page.iter("p") if e.get("class") == "status")), "reasons": [text(e) for e in page.iter("li")],
    "figures": {text(d.find("dt")): text(d.find("dd")) for d in page.iter("div") if d.find("dt") is not None}}))
END

my $node;

# The page of a database, as psql writes it into a file, and what it says.
sub page
{
	my ($file, $database, $arguments) = @_;
	local $ENV{PGCLIENTENCODING} = 'UTF8';
	system('psql', '-XAtq', '-d', $node->connstr($database // 'postgres'), '-o', "$dir/$file.html", '-c', 'SELECT outbox.report(' . ($arguments // '') . ')') == 0 or die 'no report';
	my $said = qx(python3 $dir/read.py < $dir/$file.html 2>&1);
	my $page = eval { JSON::PP->new->utf8->decode($said) };
	ok($page, "$file: well-formed") or die $said;
	is(join(' ', grep { !/^(?:a|html|head|meta|title|style|body|header|p|div|h1|h2|ul|li|dl|dt|dd|section|small|code|span|svg|g|path|rect|text|table|thead|tbody|tr|th|td|footer)$/ } @{ $page->{tags} }), '', "$file: no tags but those of the report");
	is(join(' ', grep { /^on|href|src/ } @{ $page->{attributes} }), '', "$file: nothing runs or is loaded");
	return $page;
}

my $receiver = HttpReceiver->start;
$node = OutboxCluster->create('main', conf => "outbox.rescan_interval = '500 ms'\nmax_worker_processes = 30\n");
$node->wait_for_dispatcher;

# --- nothing there
my $page = page('empty');
like($page->{status}, qr/OK/, 'an empty database is well');
is($page->{figures}{Due}, 0, 'nothing is due');
is($page->{sections}{$_}{rest} =~ s/\.$//r, { Backlog => 'Nothing is outstanding', 'Dead letters' => 'There are none', Throughput => 'Nothing was staged within this time' }->{$_}, "$_: says that there is nothing")
  foreach 'Backlog', 'Dead letters', 'Throughput';

# --- what comes from users and receivers
my $evil = '<script>alert(1)</script>"\'&amp; ☃ é';
my $error = qq{<script>alert("x")</script>]]>\x{202e}& ☃ \x01} . 'z' x 400;
$receiver->on('/evil', { status => 500, body => encode('UTF-8', $error) });
$receiver->on('/ok', {});
$node->handler(encode('UTF-8', $evil), ['evil.*'], $receiver->url('/evil'), max_attempts => 1);
$node->handler('well', ['well.*'], $receiver->url('/ok'));
$node->stage('evil.one');
$node->stage('well.one');
$node->wait_for_states('dead 1, delivered 1') or diag $node->sql('SELECT handler, state, error FROM outbox.deliveries');
$node->sql("SELECT outbox.pause_handler('well', " . $node->quote(encode('UTF-8', $evil)) . "), outbox.stage('well.two')");
$node->sql('CREATE ROLE app');
$node->sql("CREATE FUNCTION public.fails(outbox.occurrence) RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN RAISE '%', " . $node->quote(encode('UTF-8', $evil)) . "; END \$\$; ALTER FUNCTION public.fails OWNER TO app");
$node->sql('SELECT outbox.create_schedule(' . $node->quote(encode('UTF-8', "s $evil")) . ", every => '1 hour', function => 'public.fails(outbox.occurrence)')");
$node->sql('SELECT outbox.stage($$nobody.here$$)');
$page = page('evil');
like($page->{status}, qr/Warning/, 'a dead letter is worth a warning');
ok((grep { /well.*paused/ } @{ $page->{reasons} }), 'whose reasons are there') or diag join "\n", @{ $page->{reasons} };
my ($dead) = @{ $page->{sections}{'Dead letters'}{rows} };
is($dead->[0], $evil, 'the name of a handler is what it is');
is($dead->[1], '500', 'what it died of');
like($dead->[6], qr/^\Q<script>alert("x")<\/script>]]>\E.*☃ .+z+…$/, 'what the receiver said, cut short');
like($page->{sections}{Backlog}{rows}[0][8], qr/^paused: .*\Q$evil\E/, 'who holds up a backlog, in their words');
ok((grep { $_->[0] eq "s $evil" } @{ $page->{sections}{Schedules}{rows} }), 'the name of a schedule');
is($page->{sections}{'Topics that no handler takes'}{rows}[0][0], 'nobody.here', 'a topic that nobody takes');
my ($paused) = grep { $_->[2] eq 'pause_handler' } @{ $page->{sections}{Actions}{rows} };
is(join(' | ', @{$paused}[3 .. 5]), "handler: well | 1 | $evil", 'what operators did, and why');
ok((grep { $_->[0] eq 'well' && $_->[1] == 1 } @{ $page->{sections}{'Slowest receivers'}{rows} }), 'requests of receivers');
is(scalar @{ $page->{sections}{'From commit to answer'}{bars} }, 1, 'a histogram of latencies');
like($page->{sections}{'From commit to answer'}{note}, qr/^p50 ≤ [\d.]+ (?:µs|ms|s), p90 ≤ .*, p99 ≤ /, 'with its quantiles');
like($page->{sections}{Throughput}{rest}, qr/ 4 messages,/, 'messages are counted');
like(join(' ', @{ $page->{sections}{Throughput}{bars} }), qr/ 1 outstanding, 1 dead|1 outstanding, 0 dead.* 1 dead/, 'and how they stand');

# --- very many
$node->sql("INSERT INTO outbox.handler (name, topics) SELECT 'crowd ' || n, '{crowd.all}' FROM generate_series(1, 1000) n");
$node->sql("SELECT outbox.stage('crowd.all')");
$page = page('crowd');
is(scalar @{ $page->{sections}{Backlog}{rows} }, 10, 'the worst ten are shown');
like($page->{sections}{Backlog}{rest}, qr/^and 991 more handlers with 991 due of 991 /, 'and the rest is counted');
cmp_ok(-s "$dir/crowd.html", '<', 100_000, 'the page stays small');

# --- more than is read: 5,000 a minute, evenly
$node->extension('large');
$node->sql("SELECT outbox.create_handler('h', '{x}', NULL)", 'large');
$node->sql("CREATE TEMP TABLE lately AS SELECT n, at, overlay(outbox_internal.id_floor(at)::text PLACING lpad(to_hex(n), 12, '0') FROM 25)::uuid AS id
	FROM (SELECT n, clock_timestamp() - interval '10 minutes' + n * interval '10 minutes' / 50000 AS at FROM generate_series(0, 49999) n) s;
	INSERT INTO outbox.message (id, staged_at, topic) SELECT id, at, 'x' FROM lately;
	INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state)
	SELECT id, at, (SELECT id FROM outbox.handler WHERE name = 'h'), 1, 0, CASE WHEN n % 4 = 0 THEN 4 ELSE 3 END FROM lately", 'large');
$page = page('large', 'large');
my ($total) = $page->{sections}{Throughput}{rest} =~ /About ([\d,]+) messages/;
cmp_ok(abs(50000 - ($total // 0) =~ tr/,//dr), '<', 1500, 'a bar of many messages is estimated from some') or diag($page->{sections}{Throughput}{rest});
my ($done, $died) = map { tr/,//dr } $page->{sections}{Throughput}{bars}[5] =~ /([\d,]+) done, .* ([\d,]+) dead/;
cmp_ok(abs($done / ($died || 1) - 3), '<', 0.2, 'and what became of them, too');
like($page->{sections}{'Dead letters'}{note}, qr/^12,500, of which the newest 1,000/, 'of dead letters some are looked at');
$page = page('day', 'large', "'1 day'");
like($page->{sections}{Throughput}{note}, qr/within 24 h, .*; each bar is 24 min/, 'another period');

# --- another encoding, and a server without the library preloaded
$node->sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0");
$node->sql('CREATE EXTENSION outbox', 'latin');
{
	local $ENV{PGCLIENTENCODING} = 'UTF8';
	system('psql', '-XAtq', '-d', $node->connstr('latin'), '-o', '/dev/null', '-c', encode('UTF-8', "SELECT outbox.create_handler('é', '{x}'), outbox.stage('x')")) == 0 or die;
}
is(page('latin', 'latin')->{sections}{Backlog}{rows}[0][0], 'é pull', 'a database in another encoding');

SKIP:
{
	my ($chromium) = grep { -x } map { ("$_/chromium", "$_/chromium-browser") } split /:/, $ENV{PATH};
	skip 'no chromium', 4 unless $chromium;
	foreach my $name ('evil', 'crowd')
	{
		my @command = ($chromium, '--headless', '--no-sandbox', '--disable-gpu', "--user-data-dir=$dir/profile", '--timeout=60000', '--window-size=1240,2400');
		local $ENV{HOME} = $dir;
		my $drawn = decode('UTF-8', qx(@command --dump-dom file://$dir/$name.html 2>$dir/chromium.log));
		like($drawn, qr{<h2>Retention.*</html>}s, "$name: a browser reads all of it");
		qx(@command --screenshot=$dir/$name.png file://$dir/$name.html 2>$dir/chromium.log);
		cmp_ok(-s "$dir/$name.png" // 0, '>', 20_000, "$name: and draws it");
	}
}

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
$page = page('bare');
like($page->{status}, qr/Critical/, 'a server that sends nothing');
is($page->{sections}{'From commit to answer'}{rest}, 'Nothing has been counted yet.', 'and counts nothing');

$node->stop;
done_testing;
