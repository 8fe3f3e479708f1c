# The quick start's tour: a server in the folder named on the command line, a
# receiver, and the life of two messages.  Run by test/demo/quickstart, and in the
# container image by outbox-demo.
use strict;
use warnings;

use HttpReceiver;
use Time::HiRes qw(sleep time);

$| = 1;

my $folder = shift or die "usage: tour.pl folder\n";
# A container image has no pg_config.
chomp(my $bindir = $ENV{PGBINDIR} // qx("$ENV{PG_CONFIG}" --bindir));
$ENV{PATH} = "$bindir:$ENV{PATH}";
@ENV{qw(PGHOST PGPORT PGDATABASE)} = ($folder, 5432, 'postgres');
delete @ENV{qw(PGUSER PGSERVICE PGOPTIONS PGPASSWORD)};

my $receiver = HttpReceiver->start;
start_server();
my $failed = !eval { tour(); 1 };
print "\nThe tour failed: $@" if $failed;
stop_server();
$receiver->stop;
exit($failed ? 1 : 0);

sub tour
{
	say_step('A handler takes every topic below "billing." and is called at its URL.');
	my $url = $receiver->url('/hooks/billing');
	psql(<<"SQL");
CREATE EXTENSION outbox;

SELECT outbox.create_handler('accounting', ARRAY['billing.*'], '$url',
	max_attempts => 2, backoff => ARRAY['100 ms']::interval[]);

CREATE TABLE invoice (id int PRIMARY KEY, amount numeric, paid boolean);
SQL

	say_step('The business row and the message are committed together.');
	psql(<<'SQL');
BEGIN;
INSERT INTO invoice VALUES (42, 99.50, true);
SELECT outbox.stage('billing.invoice.paid', '{"invoice": 42, "amount": 99.50}');
COMMIT;

SELECT id, topic, payload FROM outbox.message;
SQL

	say_step('The request, as the receiver saw it:');
	$receiver->wait_for_requests(1) or die "no request came\n";
	show_request(($receiver->requests)[0]);

	say_step('The receipt: this message, for this handler, was delivered.');
	psql(<<'SQL');
CALL outbox.drain();
SELECT handler, topic, state, attempts, settled_at - staged_at AS took FROM outbox.deliveries;
SQL

	say_step('What rolls back was never sent.');
	psql(<<'SQL');
BEGIN;
INSERT INTO invoice VALUES (43, 10, true);
SELECT outbox.stage('billing.invoice.paid', '{"invoice": 43}');
ROLLBACK;
SQL

	say_step('Now the receiver answers 500: two attempts, then a dead letter.');
	$receiver->on('/', { status => 500, body => 'the books are closed' });
	psql(q{SELECT outbox.stage('billing.invoice.sent', '{"invoice": 44}');});
	wait_for_sql('SELECT count(*) FROM outbox.dead_letters', 1);
	psql('SELECT handler, topic, code, error, attempts, payload FROM outbox.dead_letters;');

	say_step('The receiver is well again; an operator requeues the message.');
	$receiver->on('/', { status => 200 });
	psql(<<'SQL');
SELECT outbox.requeue(message_id) FROM outbox.dead_letters;
CALL outbox.drain();
SELECT topic, state, attempts, attempts_of_budget FROM outbox.deliveries;
SQL
	my @requests = $receiver->requests;
	printf "\nThe receiver saw %d requests, and these attempts of the second message, all under one id:\n", scalar @requests;
	print join("\n", map { "  webhook-id: $_->{headers}{'webhook-id'}  outbox-attempt: $_->{headers}{'outbox-attempt'}" } @requests[ 1 .. $#requests ]),
	  "\n";
	die "the tour did not go as told\n"
	  unless @requests == 4 && sql('SELECT count(*) FROM outbox.deliveries WHERE state = \'delivered\'') == 2;
	return;
}

sub say_step
{
	print "\n--- $_[0]\n";
	return;
}

# Run SQL and show it with its results.
sub psql
{
	my $text = shift;
	$text =~ s/\s+\z//;
	open my $psql, '|-', 'psql', '-XqaP', 'pager=off', '-v', 'ON_ERROR_STOP=1' or die "psql: $!\n";
	print $psql "$text\n";
	close $psql or die "psql failed\n";
	return;
}

sub sql
{
	my $text = shift;
	open my $psql, '-|', 'psql', '-XqAtc', $text or die "psql: $!\n";
	my $answer = do { local $/; <$psql> };
	close $psql or die "psql failed\n";
	chomp $answer;
	return $answer;
}

sub wait_for_sql
{
	my ($text, $expected) = @_;
	my $end = time + 60;
	until (sql($text) eq $expected)
	{
		die "waited in vain for: $text\n" if time > $end;
		sleep 0.05;
	}
	return;
}

sub show_request
{
	my $request = shift;
	print "    $request->{method} $request->{path}\n";
	print map { "    $_: $request->{headers}{$_}\n" } sort keys %{ $request->{headers} };
	print "\n    $request->{body}\n";
	return;
}

sub quietly
{
	my $log = "$folder/setup.log";
	my $command = join ' ', map { "'$_'" } @_;
	return if system("$command >> $log 2>&1") == 0;
	open my $in, '<', $log;
	print <$in>;
	die "$_[0] failed\n";
}

sub start_server
{
	mkdir $folder or die "$folder: $!\n";
	quietly('initdb', '-D', "$folder/data", '-A', 'trust', '-N', '-E', 'UTF8', '--no-locale');
	open my $conf, '>>', "$folder/data/postgresql.conf" or die "postgresql.conf: $!\n";
	print $conf "listen_addresses = ''\nunix_socket_directories = '$folder'\nshared_preload_libraries = 'outbox'\n";
	close $conf;
	quietly('pg_ctl', '-D', "$folder/data", '-l', "$folder/server.log", '-w', 'start');
	return;
}

sub stop_server
{
	quietly('pg_ctl', '-D', "$folder/data", '-m', 'fast', '-w', 'stop');
	return;
}
