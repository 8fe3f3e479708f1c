# What keeps requests from leaving this machine is not the receiver's fault: no
# attempt is spent, however long it lasts, and an operator sees what it is.
#
# The server's connect() is replaced by one that finds no local port free as
# long as a file is there.
use strict;
use warnings;

use File::Temp qw(tempdir);
use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = tempdir('outbox_ports_XXXXXX', TMPDIR => 1, CLEANUP => 1);
my ($source, $library, $exhausted, $refused) = map { "$folder/$_" } qw(ports.c ports.so exhausted refused);

append_to_file($source, <<"END");
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

int
connect(int fd, const struct sockaddr *address, socklen_t len)
{
	int			(*real) (int, const struct sockaddr *, socklen_t) =
		(int (*) (int, const struct sockaddr *, socklen_t)) dlsym(RTLD_NEXT, "connect");
	int			type = 0;
	socklen_t	type_len = sizeof(type);
	int			log;

	getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_len);
	if (address->sa_family != AF_INET || type != SOCK_STREAM || access("$exhausted", F_OK) != 0)
		return real(fd, address, len);
	log = open("$refused", O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (write(log, ".", 1) != 1)
		_exit(1);
	close(log);
	errno = EADDRNOTAVAIL;
	return -1;
}
END
my $compiler = qx("$ENV{PG_CONFIG}" --cc);
chomp $compiler;
plan skip_all => 'there is no compiler' if system("$compiler -shared -fPIC -o $library $source -ldl") != 0;

my $receiver = HttpReceiver->start;
my $node;
{
	local $ENV{LD_PRELOAD} = join ' ', $library, $ENV{LD_PRELOAD} // ();
	$node = OutboxCluster->create('ports');
}
my $beside = HttpReceiver->start(unix => "$folder/socket");
$node->handler('other', ['other.*'], 'http://receiver.test/', unix_socket => "$folder/socket");

foreach my $transport ('auto', 'curl')
{
	my $handler = "shop_$transport";
	my $said = qr/WARNING: .*outbox dispatcher could not send to handler "$handler": this machine has no local port free/;

	my $before = $node->wait_for_dispatcher;
	$node->sql("ALTER SYSTEM SET outbox.transport = $transport");
	$node->reload;
	$node->sql("SELECT pg_terminate_backend($before)");
	$node->wait_for_dispatcher('postgres', $before);

	unlink $refused;
	append_to_file($exhausted, '');
	$node->handler($handler, ["$transport.*"], $receiver->url("/$transport"), max_attempts => 1);
	$node->stage("$transport.message", "{\"n\": $_}") foreach 1 .. 3;
	$node->wait_while_not(sub { (-s $refused // 0) >= 10 }, "$transport: it is tried again and again");
	is($node->sql("SELECT string_agg(DISTINCT concat_ws(' ', state, attempts), ',') FROM outbox.deliveries WHERE handler = '$handler'"),
		'pending 0', "$transport: no attempt is spent");
	is($node->sql("SELECT count(*) FROM outbox.attempts WHERE handler = '$handler'"), 0, "$transport: none is logged");
	$node->wait_for("SELECT last_error ~ 'no local port free' FROM outbox.dispatchers", 't', "$transport: outbox.dispatchers says what is missing");
	is($node->sql(<<"END"), 't|warn|1|t', "$transport: health() says what is short, since when, and what lifts it");
SELECT bool_and(d.shortage_since BETWEEN m.staged_at AND clock_timestamp()), h.status, count(*), bool_and(h.reasons[1] ~ ('^requests cannot be sent since '
	|| substr(date_trunc('second', d.shortage_since)::text, 1, 19) || '.*no local port free for a connection .*"$handler".*; it lifts .*net\.ipv4\.ip_local_port_range'))
FROM outbox.health() h, outbox.dispatchers d, (SELECT min(staged_at) AS staged_at FROM outbox.deliveries WHERE handler = '$handler') m GROUP BY h.status
END
	my $since = $node->sql('SELECT shortage_since FROM outbox.dispatchers');
	is($node->sql("SELECT status FROM outbox.health(critical_after => '0 s', warn_after => '0 s')"), 'critical', "$transport: for too long, it is critical");
	my @warnings = $node->log_text =~ /$said/g;
	is(scalar(@warnings), 1, "$transport: so does the log, once");

	# A handler that needs no port goes on, which does not end the shortage.
	$node->stage('other.message', '{}');
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'other' AND state <> 'delivered'", 0, "$transport: what needs none is delivered");
	is($node->sql('SELECT shortage_since FROM outbox.dispatchers'), $since, "$transport: which ends no shortage");

	unlink $exhausted;
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = '$handler' AND state = 'delivered' AND attempts = 1", 3,
		"$transport: with ports they are delivered");
	$node->wait_for('SELECT last_error IS NULL AND shortage IS NULL AND shortage_since IS NULL FROM outbox.dispatchers', 't', "$transport: and nothing is missing");
	is($node->sql('SELECT status, reasons FROM outbox.health()'), 'ok|{}', "$transport: and health() is content");
}

$node->stop;
done_testing();
