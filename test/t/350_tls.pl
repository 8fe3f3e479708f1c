# TLS, client certificates, HTTP/2 and unix sockets, end to end: a receiver
# that cannot prove who it is gets nothing, and what proves who we are is
# shown to nobody else.
use strict;
use warnings;

use Certificates;
use HttpReceiver;
use IPC::Run ();
use OutboxCluster;
use Test::More;
use TlsReceiver;

plan skip_all => Certificates->missing // TlsReceiver->missing if Certificates->missing || TlsReceiver->missing;

my $certificates = Certificates->new;
my @here = ('IP:127.0.0.1', 'DNS:localhost');
$certificates->authority($_) foreach qw(ca other_ca);
$certificates->issue('good', authority => 'ca', names => \@here);
$certificates->issue('expired', authority => 'ca', names => \@here, from => -10, to => -1);
$certificates->issue('early', authority => 'ca', names => \@here, from => 10, to => 20);
$certificates->issue('wrong_host', authority => 'ca', names => ['DNS:elsewhere.test']);
$certificates->issue('name_only', authority => 'ca', names => ['DNS:localhost']);
$certificates->issue('stranger', authority => 'other_ca', names => \@here);
$certificates->issue('self_signed', names => \@here);
$certificates->issue($_, authority => 'ca', names => ["DNS:$_"]) foreach qw(client client2);
$certificates->issue('intruder', authority => 'other_ca', names => ['DNS:intruder']);
$certificates->write('both.pem', $certificates->read('client.crt') . $certificates->read('client.key'));
$certificates->write('both_authorities.pem', $certificates->read('ca.crt') . $certificates->read('other_ca.crt'));
$certificates->write('nonsense.pem', "nonsense\n");

sub server
{
	my ($name, %options) = @_;
	return { cert => $certificates->file("$name.crt"), key => $certificates->file("$name.key"), %options };
}
my %asks = (requestCert => JSON::PP::true, rejectUnauthorized => JSON::PP::true, ca => $certificates->file('ca.crt'));
my $receivers = TlsReceiver->start(
	good => server('good'),
	tls12 => server('good', maxVersion => 'TLSv1.2'),
	tls13 => server('good', minVersion => 'TLSv1.3'),
	tls11 => server('good', minVersion => 'TLSv1', maxVersion => 'TLSv1.1', ciphers => 'DEFAULT@SECLEVEL=0'),
	tls10 => server('good', minVersion => 'TLSv1', maxVersion => 'TLSv1', ciphers => 'DEFAULT@SECLEVEL=0'),
	asks => server('good', %asks),
	unfit => server('good', %asks),
	asks12 => server('good', %asks, maxVersion => 'TLSv1.2'),
	two => server('good', http2 => JSON::PP::true),
	two_asks => server('good', http2 => JSON::PP::true, %asks),
	(map { $_ => server($_) } qw(expired early wrong_host name_only stranger self_signed)));
my $plain = HttpReceiver->start;
my $socket = $certificates->file('socket');
my $on_socket = HttpReceiver->start(unix => $socket);

my $node = OutboxCluster->create('tls', conf => 'log_min_messages = debug2');
my $fast = \"ARRAY['20 ms']::interval[]";
my @trust = (tls_ca_file => $certificates->file('ca.crt'));

sub outcome_of
{
	my $name = shift;
	return "SELECT concat_ws(' ', state, attempts, coalesce(code, '-'), http_status) FROM outbox.deliveries WHERE handler = '$name' ORDER BY message_id DESC LIMIT 1";
}

sub handler
{
	my ($name, $url, %options) = @_;
	$node->handler($name, ["$name.x"], $url, backoff => $fast, max_attempts => 2, timeout => '60 s', connect_timeout => '60 s', breaker_threshold => 0, %options);
	return;
}

# A handler of its own for one message; how that ends.
sub ends
{
	my ($name, $url, $options, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	handler($name, $url, %$options);
	$node->stage("$name.x");
	return $node->wait_for(outcome_of($name), $expected, "$name: $what");
}

sub again
{
	my ($name, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $id = $node->stage("$name.x");
	return $node->wait_for("SELECT concat_ws(' ', state, attempts, coalesce(code, '-'), http_status) FROM outbox.deliveries WHERE message_id = '$id'", $expected, "$name: $what");
}

my %key = (tls_certificate_file => $certificates->file('client.crt'), tls_key_file => $certificates->file('client.key'));
my $delivered = 'delivered 1 - 200';

foreach my $transport ('auto', 'curl')
{
	$node->restart_with('outbox.transport' => $transport);
	my $t = $transport;

	# --- who the receiver is
	ends("good_$t", $receivers->url('good'), {@trust}, $delivered, 'a certificate of our authority');
	again("good_$t", $delivered, 'and again');
	my ($first, $second) = ($receivers->requests('good'))[ -2, -1 ];
	is($second->{connection}, $first->{connection}, "good_$t: on the same connection");
	is($first->{protocol}, 'TLSv1.3', "good_$t: with TLS 1.3");
	is($first->{body}, '{}', "good_$t: the body is there");
	ends("name_$t", $receivers->url('name_only', '/', 'localhost'), {@trust}, $delivered, 'by name');
	ends("tls12_$t", $receivers->url('tls12'), {@trust}, $delivered, 'TLS 1.2');
	ends("tls13_$t", $receivers->url('tls13'), {@trust}, $delivered, 'TLS 1.3');
	ends("tls11_$t", $receivers->url('tls11'), {@trust}, 'dead 2 tls', 'nothing older than TLS 1.2');
	ends("tls10_$t", $receivers->url('tls10'), {@trust}, 'dead 2 tls', 'nor TLS 1.0');
	ends("system_$t", $receivers->url('good', "/system/$t"), {}, 'dead 2 tls', 'the system\'s authorities do not know ours');
	ends("only_$t", $receivers->url('stranger'), {@trust}, 'dead 2 tls', 'the certificate of another authority');
	ends("several_$t", $receivers->url('stranger', '/several'), { tls_ca_file => $certificates->file('both_authorities.pem') }, $delivered, 'several authorities in a file');
	ends("${_}_$t", $receivers->url($_), {@trust}, 'dead 2 tls', 'a certificate that is not good') foreach qw(expired early wrong_host self_signed);
	ends("address_$t", $receivers->url('name_only', '/address'), {@trust}, 'dead 2 tls', 'a certificate for the name, not the address');
	ends("plain_$t", 'https://127.0.0.1:' . $plain->port . '/plain', {@trust}, 'dead 2 tls', 'a receiver that speaks no TLS');
	ends("nofile_$t", $receivers->url('good', '/nofile'), { tls_ca_file => $certificates->file('missing.pem') }, 'dead 2 tls', 'a file of authorities that is not there');
	ends("nonsense_$t", $receivers->url('good', '/nonsense'), { tls_ca_file => $certificates->file('nonsense.pem') }, 'dead 2 tls', 'or is none');
	is(scalar(map { $receivers->requests($_) } qw(expired early wrong_host self_signed tls10 tls11)), 0, "$t: none of them got a request");
	is(scalar(map { $receivers->requests('good', $_) } "/system/$t", '/nofile', '/nonsense'), 0, "$t: nor did a receiver that was not believed");
	is(scalar($receivers->requests('name_only', '/address')), 0, "$t: by its address neither");
	is($node->sql("SELECT count(*) FROM outbox.dead_letters WHERE handler ~ '^(system|only|expired|early|wrong_host|self_signed|address)_$t' AND error !~* 'certificate'"), 0, "$t: errors say that it is the certificate");
	is($node->sql("SELECT count(*) FROM outbox.attempts WHERE handler = 'expired_$t' AND code = 'tls'"), 2, "$t: it was retried");

	# Once it is put right, the next attempt goes through.
	$node->sql("SELECT outbox.alter_handler('system_$t', tls_ca_file => '" . $certificates->file('ca.crt') . "')");
	$node->sql("SELECT outbox.requeue_where(handler => 'system_$t')");
	$node->wait_for(outcome_of("system_$t"), 'delivered 3 - 200', "system_$t: delivered with the right authority");

	# Whoever trusts nobody any more does not go on with a kept connection.
	$node->sql("SELECT outbox.alter_handler('good_$t', reset => ARRAY['tls_ca_file'])");
	again("good_$t", 'dead 2 tls', 'a kept connection is no reason to trust');
	ends("suspicious_$t", $receivers->url('good'), {}, 'dead 2 tls', 'nor is another handler\'s');

	# --- who we are
	ends("asks_$t", $receivers->url('asks'), { @trust, %key }, $delivered, 'a client certificate');
	ends("asks12_$t", $receivers->url('asks12'), { @trust, %key }, $delivered, 'a client certificate with TLS 1.2');
	ends("both_$t", $receivers->url('asks', '/both'), { @trust, tls_certificate_file => $certificates->file('both.pem') }, $delivered, 'certificate and key in a file');
	is(join(',', map { $_->{peer} } ($receivers->requests('asks'))[ -2, -1 ]), 'client,client', "$t: the receiver knows who calls");
	my $before = scalar(map { $receivers->requests($_) } qw(asks asks12 unfit));
	ends("none_$t", $receivers->url('asks12', '/none'), {@trust}, 'dead 2 tls', 'no client certificate');
	ends("none13_$t", $receivers->url('asks', '/none'), {@trust}, 'dead 2 tls', 'no client certificate with TLS 1.3');
	ends("intruder_$t", $receivers->url('asks12', '/intruder'), { @trust, tls_certificate_file => $certificates->file('intruder.crt'), tls_key_file => $certificates->file('intruder.key') }, 'dead 2 tls', 'another authority\'s');
	ends("unfit_$t", $receivers->url('unfit'), { @trust, %key, tls_key_file => $certificates->file('client2.key') }, 'dead 2 tls', 'a key that does not fit');
	ends("nokey_$t", $receivers->url('unfit', '/nokey'), { @trust, %key, tls_key_file => $certificates->file('missing.key') }, 'dead 2 tls', 'a key that is not there');
	is(scalar(map { $receivers->requests($_) } qw(asks asks12 unfit)), $before, "$t: none of them got a request through");
	$node->sql("SELECT outbox.alter_handler('asks_$t', tls_certificate_file => '" . $certificates->file('client2.crt') . "', tls_key_file => '" . $certificates->file('client2.key') . "')");
	again("asks_$t", $delivered, 'another client certificate');
	is(($receivers->requests('asks'))[-1]{peer}, 'client2', "$t: is used at once");

	# --- HTTP/2, where it is asked for
	ends("one_$t", $receivers->url('two', '/one'), {@trust}, $delivered, 'HTTP/1.1 unless it is asked for');
	is(($receivers->requests('two', '/one'))[-1]{version}, '1.1', "$t: it is");
	my @two = (@trust, http_version => '2');
	ends("two_$t", $receivers->url('two', "/two/$t"), { @two, concurrency => 10, authorization => 'Bearer over-two' }, $delivered, 'HTTP/2');
	$node->sql("SELECT outbox.stage('two_$t.x', jsonb_build_object('n', n)) FROM generate_series(1, 100) n");
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'two_$t' AND state = 'delivered' AND attempts = 1", 101, "two_$t: many messages");
	my @requests = $receivers->requests('two', "/two/$t");
	is(scalar(grep { $_->{version} ne '2.0' } @requests), 0, "$t: all over HTTP/2");
	my %connections = map { $_->{connection} => 1 } @requests;
	cmp_ok(scalar keys %connections, '<=', 10, "$t: on few connections: " . keys %connections);
	is($requests[0]{headers}{authorization}, 'Bearer over-two', "$t: with their headers");
	my %bodies = map { $_->{body} => 1 } @requests;
	is(scalar keys %bodies, 101, "$t: and their bodies");
	ends("back_$t", $receivers->url('good', '/back'), {@two}, $delivered, 'a receiver that speaks only HTTP/1.1');
	is(($receivers->requests('good', '/back'))[-1]{version}, '1.1', "$t: gets that");
	ends("clear_$t", $plain->url('/clear'), { http_version => '2' }, $delivered, 'HTTP/1.1 where there is no TLS');
	ends("two_asks_$t", $receivers->url('two_asks'), { @two, %key }, $delivered, 'HTTP/2 with a client certificate');
	ends("two_bad_$t", $receivers->url('self_signed', '/two'), {@two}, 'dead 2 tls', 'HTTP/2 with a bad certificate');
	ends("two_hints_$t", $receivers->url('two', '/always/hints'), {@two}, $delivered, 'early hints are passed over');
	ends("two_big_$t", $receivers->url('two', '/always/big'), {@two}, 'dead 2 500 500', 'a big body');
	ends("two_busy_$t", $receivers->url('two', '/once/busy'), {@two}, $delivered =~ s/1/2/r, 'what the receiver says counts');
	ends("two_silent_$t", $receivers->url('two', '/always/silent'), { @two, timeout => '500 ms' }, 'dead 2 timeout', 'silence times out');

	# GOAWAY and what else ends a stream or a connection: tried again, nothing lost.
	foreach my $how (qw(goaway calm refuse reset vanish cut dies last))
	{
		my $name = "${how}_$t";
		handler($name, $receivers->url('two', "/once/$how"), @two, concurrency => 4, max_attempts => 20, timeout => '2 s');
		$node->sql("SELECT outbox.stage('$name.x') FROM generate_series(1, 10)");
		$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = '$name' AND state = 'delivered'", 10, "$name: all delivered");
		my $codes = $node->sql("SELECT coalesce(string_agg(DISTINCT code, ',' ORDER BY code), 'none') FROM outbox.attempts WHERE handler = '$name'");
		like($codes, qr/^(none|(body|connect|timeout)(,(body|connect|timeout))*)$/, "$name: failures are $codes");
	}

	# --- a unix socket
	my %at = (unix_socket => $socket);
	ends("socket_$t", "http://receiver.test/$t", {%at}, $delivered, 'a unix socket');
	again("socket_$t", $delivered, 'and again');
	my @local = $on_socket->requests("/$t");
	is($local[0]{headers}{host}, 'receiver.test', "$t: the URL's host is in the request");
	is($local[1]{connection}, $local[0]{connection}, "$t: the connection is kept");
	$on_socket->close_idle;
	again("socket_$t", $delivered, 'and opened again');
	$on_socket->go_away;
	again("socket_$t", 'dead 2 connect', 'nobody listens');
	$on_socket->come_back;
	again("socket_$t", $delivered, 'somebody does');
	ends("nosocket_$t", 'http://receiver.test/', { unix_socket => $certificates->file('nothing') }, 'dead 2 connect', 'no such socket');
	$node->sql("SELECT outbox.alter_handler('socket_$t', url => '" . $plain->url("/tcp/$t") . "', reset => ARRAY['unix_socket'])");
	again("socket_$t", $delivered, 'back to TCP');
	is($plain->count("/tcp/$t"), 1, "$t: it is");
}

# A unix socket is on this machine because a superuser says so.
$node->restart_with('outbox.transport' => 'auto', 'outbox.blocked_networks' => 'private');
ends('guarded', 'http://receiver.test/guarded', { unix_socket => $socket }, $delivered, 'blocked networks do not mean unix sockets');
$node->restart_with('outbox.blocked_networks' => '');

# --- a server as they are in use, which says GOAWAY after every third request
SKIP:
{
	my ($program) = grep { -x } map { "$_/nginx" } split(/:/, $ENV{PATH}), '/usr/sbin';
	skip 'nginx is not installed', 3 unless $program;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $folder = $certificates->file('nginx');
	mkdir $folder or die "$folder: $!";
	my $config = $certificates->write('nginx/nginx.conf', <<"END");
daemon off;
master_process off;
pid $folder/pid;
error_log $folder/error.log;
events { worker_connections 100; }
http {
	log_format requests '\$connection \$server_protocol \$http_outbox_attempt';
	access_log $folder/access.log requests;
	@{[ join "\n\t", map { "${_}_temp_path $folder/$_;" } qw(client_body proxy fastcgi uwsgi scgi) ]}
	server {
		listen 127.0.0.1:$port ssl http2;
		ssl_certificate @{[ $certificates->file('good.crt') ]};
		ssl_certificate_key @{[ $certificates->file('good.key') ]};
		keepalive_requests 3;
		location / { return 200 ok; }
	}
}
END
	my $output = '';
	my $nginx = IPC::Run::start([ $program, '-p', $folder, '-e', "$folder/error.log", '-c', $config ], '<', \undef, '>&', \$output);
	$node->wait_while_not(sub { IO::Socket::IP->new(PeerHost => '127.0.0.1', PeerPort => $port) }, 'nginx is there');
	handler('nginx', "https://127.0.0.1:$port/", @trust, http_version => '2', concurrency => 4, max_attempts => 20);
	foreach my $round (1 .. 5)
	{
		$node->sql("SELECT outbox.stage('nginx.x') FROM generate_series(1, 8)");
		$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'nginx' AND state = 'delivered'", 8 * $round, "nginx: round $round");
	}
	note('attempts: ' . $node->sql("SELECT string_agg(DISTINCT attempts::text, ', ') FROM outbox.deliveries WHERE handler = 'nginx'"));
	$nginx->signal('TERM');
	$nginx->finish;
	my %served;
	/^(\d+) HTTP\/2\.0 / and $served{$1}++ foreach split /\n/, $certificates->read('nginx/access.log');
	cmp_ok(scalar(keys %served), '>=', 13, 'nginx: over HTTP/2, on one connection after the other');
}

# --- authorization is as secret as a signing secret
foreach my $value ('Bearer s3cr3t-bearer', 'Basic czNjcjN0OmJhc2lj')
{
	my $name = lc((split / /, $value)[0]);
	$plain->on("/$name", { status => 500, body => 'no' }, { status => 200 });
	ends($name, $plain->url("/$name"), { authorization => $value, secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw' }, 'delivered 2 - 200', 'sent with authorization');
	is(join('|', map { $_->{headers}{authorization} } $plain->requests("/$name")), "$value|$value", "$name: with each attempt");
	my ($secret) = $value =~ / (.*)/;
	is($node->sql("SELECT count(*) FROM outbox.handlers WHERE handlers::text LIKE '%$secret%'"), 0, "$name: not in outbox.handlers");
	is($node->sql("SELECT authorizes FROM outbox.handlers WHERE handler = '$name'"), 't', "$name: which tells that there is one");
	is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%$secret%'"), 0, "$name: not in pg_stat_activity");
	is($node->sql("SELECT count(*) FROM outbox.attempts a WHERE a::text LIKE '%$secret%'"), 0, "$name: not in the attempt log");
	unlike($node->log_text, qr/\Q$secret\E/, "$name: not in the server's log");
}
$node->sql("SELECT outbox.alter_handler('bearer', \"authorization\" => 'Bearer another')");
again('bearer', $delivered, 'another token');
is(($plain->requests('/bearer'))[-1]{headers}{authorization}, 'Bearer another', 'bearer: is sent at once');
$node->sql("SELECT outbox.alter_handler('bearer', reset => ARRAY['authorization'])");
again('bearer', $delivered, 'none any more');
ok(!exists(($plain->requests('/bearer'))[-1]{headers}{authorization}), 'bearer: none is sent');

# Who may create handlers may neither read secrets nor name files.
$node->sql(<<'END');
CREATE ROLE operator LOGIN;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO operator;
GRANT SELECT ON outbox.handlers TO operator;
END
my $as_operator = 'SET ROLE operator;';
like($node->sql_error("$as_operator SELECT * FROM outbox.handler_secret"), qr/42501/, 'an operator reads no secrets');
foreach my $option (qw(unix_socket tls_ca_file tls_certificate_file tls_key_file))
{
	like($node->sql_error("$as_operator SELECT outbox.create_handler('theirs', ARRAY['theirs.x'], 'https://example.com/', $option => '/etc/passwd')"), qr/42501.*superuser.*HINT/s, "$option is for superusers");
	like($node->sql_error("$as_operator SELECT outbox.alter_handler('bearer', $option => '/etc/passwd')"), qr/42501/, "$option cannot be set by others later");
	like($node->sql_error("$as_operator SELECT outbox.alter_handler('asks_auto', reset => ARRAY['$option'])"), qr/42501/, "$option cannot be reset by others");
}
is($node->sql("$as_operator SELECT outbox.create_handler('theirs', ARRAY['theirs.x'], 'https://example.com/', \"authorization\" => 'Bearer x') > 0"), 't', 'authorization is for every operator');

unlike($node->log_text, qr/PANIC|terminated by signal/, 'the server took no harm');
$node->stop;
done_testing();
