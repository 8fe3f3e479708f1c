# Where requests may go: outbox.blocked_networks on every way to write an
# address, on names, and on connections that are open already; redirects and
# the environment's proxies lead nowhere.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $receiver6 = eval { HttpReceiver->start(address => '::1') };
my $proxy = HttpReceiver->start;
my $port = $receiver->port;

# The server's environment names a proxy for everything.
my $proxy_url = $proxy->url('');
my @proxies = qw(http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY);
local @ENV{@proxies} = ($proxy_url) x @proxies;
my $node = OutboxCluster->create('egress');

my $fast = \"ARRAY['20 ms']::interval[]";

sub outcome_of
{
	my $name = shift;
	return "SELECT concat_ws(' ', state, attempts, code, http_status) FROM outbox.deliveries WHERE handler = '$name' ORDER BY message_id DESC LIMIT 1";
}

# Every receiver together: connections that ever reached one.
sub connections
{
	my $sum = 0;
	$sum += $_->stats->{accepted} foreach grep { $_ } $receiver, $receiver6;
	return $sum;
}

sub set_blocked
{
	my $networks = shift;
	$node->sql("ALTER SYSTEM SET outbox.blocked_networks = '$networks'");
	$node->reload;
	return;
}

# Stage until the setting is in force: a reload comes when it comes.
sub comes_to
{
	my ($handler, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_while_not(
		sub {
			$node->stage("$handler.x");
			$node->wait_until("SELECT count(*) = 0 FROM outbox.deliveries WHERE handler = '$handler' AND state IN ('pending', 'retrying')");
			return $node->sql(outcome_of($handler)) eq $expected;
		},
		$name);
}

# --- how an address can be written
foreach my $host (
	'2130706433', '0x7f000001', '0x7F000001', '017700000001', '0', '127.1', '127.0.1', '0x7f.1', '0177.0.0.1', '127.0.0.01', '127.0.0.1.',
	'127.0.0.0x1', '1.2.3.4.5', '[::ffff:7f000001]', '[::1%25lo]', '[::1%lo]', '%31%32%37.0.0.1', '[127.0.0.1]', '127。0。0。1')
{
	like($node->sql_error("SELECT outbox.create_handler('odd', ARRAY['odd.x'], 'http://$host:$port/')"),
		qr/22023.*invalid URL/s, "refused where it is written: $host");
}

foreach my $transport ('auto', 'curl')
{
	$node->restart_with('outbox.transport' => $transport, 'outbox.blocked_networks' => 'private');
	my %urls = (
		'IPv4' => "http://127.0.0.1:$port/",
		'IPv4 loopback elsewhere' => "http://127.1.2.3:$port/",
		'this host' => "http://0.0.0.0:$port/",
		'a name' => "http://localhost:$port/",
		'a name in capitals' => "http://LocalHost:$port/",
		'mapped' => "http://[::ffff:127.0.0.1]:$port/",
		'mapped, in hexadecimal' => "http://[::ffff:7f00:1]:$port/",
		'compatible' => "http://[::127.0.0.1]:$port/",
		'NAT64' => "http://[64:ff9b::7f00:1]:$port/",
		'6to4' => "http://[2002:7f00:1::]:$port/",
		'metadata' => 'http://169.254.169.254/latest/meta-data/',
		'TLS' => "https://127.0.0.1:$port/");
	$urls{IPv6} = $receiver6->url('/') if $receiver6;
	$urls{'no address'} = "http://[::]:" . $receiver6->port . '/' if $receiver6;
	# Written past create_handler(): these are what the connection must refuse.
	my %unchecked = (
		'decimal' => "http://2130706433:$port/",
		'hexadecimal' => "http://0x7f000001:$port/",
		'octal' => "http://0177.0.0.1:$port/",
		'short' => "http://127.1:$port/",
		'short hexadecimal' => "http://0x7f.1:$port/",
		'with a dot' => "http://127.0.0.1.:$port/");
	my $before = connections();
	my $n = 0;
	my %names;
	foreach my $what (sort(keys %urls), sort keys %unchecked)
	{
		my $name = $names{$what} = "$transport" . ++$n;
		$node->handler($name, ["all.$transport"], $urls{$what} // 'http://127.0.0.1/', max_attempts => 2, backoff => $fast, timeout => '20 s');
		$node->sql("SELECT outbox.pause_handler('$name'); UPDATE outbox.handler SET url = '$unchecked{$what}' WHERE name = '$name'; SELECT outbox.resume_handler('$name')")
		  if $unchecked{$what};
	}
	$node->stage("all.$transport");
	foreach my $what (sort keys %names)
	{
		# Some are not even taken for addresses, which is as good.
		my $expected = $what eq 'with a dot' ? "SELECT (" . outcome_of($names{$what}) . ") IN ('dead 2 blocked', 'dead 2 dns')" : outcome_of($names{$what});
		$node->wait_for($expected, $what eq 'with a dot' ? 't' : 'dead 2 blocked', "$transport: blocked: $what");
	}
	is(connections(), $before, "$transport: and nothing ever connected");
	like($node->sql("SELECT string_agg(DISTINCT error, '|') FROM outbox.dead_letters WHERE code = 'blocked'"), qr/^[^|]*blocked[^|]*$/, "$transport: it says why");

	# The rule and the attempt log know the code.
	$node->handler("rule_$transport", ["rule_$transport.x"], $receiver->url('/'), rules => '{"blocked": "cancel"}');
	$node->stage("rule_$transport.x");
	$node->wait_for(outcome_of("rule_$transport"), 'cancelled 1 blocked', "$transport: a rule for blocked");

	# --- a connection that is kept is looked at again
	set_blocked('');
	my $kept = "kept_$transport";
	$node->handler($kept, ["$kept.x"], $receiver->url("/$kept"), max_attempts => 1, concurrency => 1, breaker_threshold => 0);
	comes_to($kept, 'delivered 1 200', "$transport: nothing is blocked");
	$node->stage("$kept.x");
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = '$kept' AND state = 'pending'", 0, "$transport: another one");
	my ($first, $second) = ($receiver->requests("/$kept"))[ -2, -1 ];
	is($second->{connection}, $first->{connection}, "$transport: on a kept connection");
	set_blocked('10.0.0.0/8, 127.0.0.0/8');
	comes_to($kept, 'dead 1 blocked', "$transport: blocked while the connection was kept");
	my $heard = $receiver->count("/$kept");
	my $accepted = $receiver->stats->{accepted};
	comes_to($kept, 'dead 1 blocked', "$transport: and stays so");
	is($receiver->count("/$kept"), $heard, "$transport: the receiver hears nothing");
	is($receiver->stats->{accepted}, $accepted, "$transport: on no new connection either");
	set_blocked('10.0.0.0/8, 127.0.0.2/32, ::/1');
	comes_to($kept, 'delivered 1 200', "$transport: other networks are no obstacle");

	# --- redirects lead nowhere
	my $elsewhere = 'http://169.254.169.254/latest/meta-data/';
	foreach my $status (300, 301, 302, 303, 304, 305, 307, 308)
	{
		my $name = "to${status}_$transport";
		my $location = $status % 2 ? $elsewhere : $receiver->url('/stolen');
		$receiver->on("/$name", { status => $status, headers => { Location => $location } }, { status => 200 });
		$node->handler($name, ["redirects.$transport"], $receiver->url("/$name"), backoff => $fast);
	}
	$node->stage("redirects.$transport");
	foreach my $status (300, 301, 302, 303, 304, 305, 307, 308)
	{
		my $name = "to${status}_$transport";
		$node->wait_for(outcome_of($name), 'delivered 2 200', "$transport: $status is retried");
		is($node->sql("SELECT concat_ws(' ', code, http_status) FROM outbox.attempts WHERE handler = '$name'"), "$status $status", "$transport: with its code");
		like($node->sql("SELECT error FROM outbox.attempts WHERE handler = '$name'"), qr{redirects are not followed; it points to http://}, "$transport: and where it points") unless $status == 304;
	}
	is($receiver->count('/stolen'), 0, "$transport: and followed nowhere");
}

# --- the environment's proxies
$node->sql("CREATE TABLE seen (variable text); COPY seen FROM PROGRAM 'env'");
is($node->sql("SELECT count(*) FROM seen WHERE variable ~* '^(http|https|all)_proxy=' AND variable LIKE '%=' || " . $node->quote($proxy_url)),
	scalar @proxies, 'the server has a proxy in its environment');
is($proxy->stats->{accepted}, 0, 'which nobody asked');

# --- who may change it, and what it takes
$node->sql('CREATE ROLE somebody LOGIN');
like($node->sql_error("SET ROLE somebody; SET outbox.blocked_networks = ''"), qr/42501/, 'only superusers set it');
foreach my $wrong ('10.0.0.1/8', 'privat', '10.0.0.0/33', '10.0.0', '::1/129', 'localhost', '10.0.0.0/8;::1/128')
{
	like($node->sql_error("ALTER SYSTEM SET outbox.blocked_networks = '$wrong'"), qr/22023.*HINT/s, "refused: $wrong");
}

unlike($node->log_text, qr/PANIC|FATAL|terminated by signal/, 'the server took no harm');
$node->stop;
done_testing();
