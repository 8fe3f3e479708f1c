# The worked examples of consumers do what they say: in Node, in Python and
# in plain SQL, as a role that may consume this one handler and nothing else.
use strict;
use warnings;

use File::Basename qw(dirname);
use File::Copy qw(copy);
use OutboxCluster;
use Test::More;

my $demo = dirname(__FILE__) . '/../demo/consumers';
my $node = OutboxCluster->create('main');
$node->handler('ledger', ['payment.*'], undef, max_attempts => 3, backoff_base => '10 ms', jitter => 0);
$node->handler('other', ['other'], undef);
$node->sql(<<'END');
CREATE TABLE ledger (message_id uuid PRIMARY KEY, account text NOT NULL CHECK (account <> 'closed'), amount numeric NOT NULL);
CREATE ROLE bookkeeper LOGIN;
GRANT INSERT, SELECT ON ledger TO bookkeeper;
SELECT outbox.grant_consumer('ledger', 'bookkeeper');
END

# Run a consumer as the role that may.
sub start
{
	my ($command, $out, $err) = @_;
	return IPC::Run::start($command, '>', $out, '2>', $err,
		init => sub { @ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ($node->host, $node->port, 'postgres', 'bookkeeper'); });
}

my $stage_all = <<'END';
TRUNCATE ledger, outbox.message, outbox.delivery, outbox.receipt, outbox.attempt;
SELECT outbox_internal.ring_rescan();
SELECT outbox.stage('payment.made', jsonb_build_object('account', 'a' || n, 'amount', n)) FROM generate_series(1, 25) n;
SELECT outbox.stage('payment.made', '{"account": "a1", "amount": "much"}');
END

# A consumer that is left running until its work is done, then told to end.
sub run_consumer
{
	my ($language, @command) = @_;
	my ($out, $err) = ('', '');

	$node->sql($stage_all . q{SELECT outbox.stage('payment.made', '{"account": "closed", "amount": 1}')});
	my $consumer = start(\@command, \$out, \$err);
	$node->wait_for("SELECT count(*) FROM outbox.delivery", 0, "$language: everything is settled");
	# It waits by now, or will: what comes next wakes it.
	$node->stage('payment.made', '{"account": "late", "amount": 7}');
	$node->wait_for("SELECT amount FROM ledger WHERE account = 'late'", 7, "$language: what comes later as well");
	$consumer->signal('TERM');
	$consumer->finish;
	is($consumer->result(0), 0, "$language: ends when told to") or diag("$out$err");
	is($err, '', "$language: without complaints");
	is($node->sql("SELECT count(*) || ' ' || sum(amount) FROM ledger"), '26 332', "$language: every payment is entered once");
	like($node->sql("SELECT string_agg(code || ' ' || attempts || ' ' || error, '; ' ORDER BY code DESC) FROM outbox.dead_letters"),
		qr/^bad_payload 1 amount is not a number; 23514 3 new row for relation "ledger" violates check constraint "ledger_account_check"/,
		"$language: what cannot be entered is a dead letter that says why");
	return;
}

SKIP:
{
	skip 'no node', 6 if system('node --version > /dev/null 2>&1') != 0;
	my $folder = $node->basedir . '/node';
	mkdir $folder;
	copy("$demo/$_", "$folder/$_") or die "$_: $!" foreach qw(consumer.js package.json);
	local $ENV{NODE_PATH} = '/usr/share/nodejs';
	if (system(qq(cd "$folder" && node -e "require('pg')" > /dev/null 2>&1)) != 0)
	{
		system(qq(cd "$folder" && npm install --no-audit --no-fund > npm.log 2>&1)) == 0
		  or skip 'node-postgres is neither installed nor to be had', 6;
	}
	run_consumer('Node', 'node', "$folder/consumer.js", 'ledger');
}

SKIP:
{
	my $python = (grep { system("$_ -c 'import psycopg' > /dev/null 2>&1") == 0 } 'python3', '/usr/bin/python3')[0];
	skip 'no psycopg', 6 unless $python;
	run_consumer('Python', $python, "$demo/consumer.py", 'ledger');
}

# Plain SQL: a script that ends by itself.
$node->sql($stage_all);
my ($out, $err) = ('', '');
my $script = start([ 'psql', '-Xq', '-v', 'handler=ledger', '-f', "$demo/consumer.sql" ], \$out, \$err);
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE usename = 'bookkeeper' AND wait_event = 'Extension'", 1, 'SQL: takes what is there, then waits');
is($node->sql("SELECT count(*) || ' ' || sum(amount) FROM ledger"), '25 325', 'SQL: every payment is entered once');
$node->stage('payment.made', '{"account": "late", "amount": 7}');
$script->finish;
is($script->result(0), 0, 'SQL: ends by itself');
is("$out$err", '', 'SQL: without complaints');
is($node->sql("SELECT count(*) || ' ' || sum(amount) FROM ledger"), '26 332', 'SQL: with what came later');
is($node->sql("SELECT string_agg(code || ' ' || error, '; ') FROM outbox.dead_letters"), 'bad_payload amount is not a number', 'SQL: and a dead letter');

# None of them could have done more.
like($node->sql_error('SET ROLE bookkeeper; SELECT * FROM outbox.claim(\'other\')'), qr/42501.*permission denied to consume handler "other"/, 'the role consumes no other handler');

done_testing();
