#!/usr/bin/perl
# What producers pay: stage() beside a plain INSERT, alone and inside an
# application's transaction, in bulk, and with many handlers.
#
#   PG_CONFIG=... perl test/bench/producers.pl [rounds]
#
# Needs a build that is installed; starts a server of its own in a temporary
# folder and removes it.  As root it runs as $TEST_USER (postgres).  Figures
# are medians over the rounds (default 3); what is compared is measured in
# turns within one run.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp qw(tempdir);
use Time::HiRes qw(time);

my $here = dirname(abs_path($0));
my $rounds = shift || 3;
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
chomp(my $bindir = qx("$pg_config" --bindir));

if ($> == 0)
{
	my $user = $ENV{TEST_USER} || 'postgres';
	exec 'runuser', '-u', $user, '--', 'env', "PG_CONFIG=$pg_config", 'perl', "$here/producers.pl", $rounds;
}

my $dir = tempdir('outbox-bench-XXXXXX', TMPDIR => 1, CLEANUP => 1);
my $started = 0;
$ENV{PATH} = "$bindir:$ENV{PATH}";
@ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ($dir, 5432, 'postgres', 'bench');
delete $ENV{PGOPTIONS};

sub run
{
	my $command = join ' ', map { "'$_'" } @_;
	system("$command > '$dir/log' 2>&1") == 0 or die "$command failed:\n" . slurp("$dir/log");
	return;
}

sub slurp
{
	my $file = shift;
	open my $in, '<', $file or return '';
	local $/;
	return <$in>;
}

sub sql
{
	my $sql = shift;
	open my $out, '>', "$dir/sql" or die;
	print $out $sql;
	close $out;
	my $answer = qx(psql -XqAt -v ON_ERROR_STOP=1 -f '$dir/sql' 2>&1);
	die "$sql\n$answer" if $? != 0;
	chomp $answer;
	return $answer;
}

sub median { my @sorted = sort { $a <=> $b } @_; return $sorted[ @sorted / 2 ]; }

# Microseconds that each of n runs of a statement takes inside the server.
sub cost
{
	my ($statement, $n) = @_;
	return sql(<<"END");
SET client_min_messages = notice;
DO \$do\$
DECLARE
	p jsonb := jsonb_build_object('invoice', 12345, 'customer', 'some customer name', 'note', repeat('x', 120));
	begun timestamptz := clock_timestamp();
BEGIN
	FOR i IN 1..$n LOOP $statement; END LOOP;
	PERFORM set_config('bench.cost', (extract(epoch FROM clock_timestamp() - begun) * 1e6 / $n)::text, false);
END \$do\$;
SELECT round(current_setting('bench.cost')::numeric, 2);
END
}

sub tps
{
	my ($clients, $script) = @_;
	open my $out, '>', "$dir/script.sql" or die;
	print $out $script;
	close $out;
	my $answer = qx(pgbench -n -M prepared -c $clients -j 2 -T 3 -f '$dir/script.sql' 2>&1);
	$answer =~ /tps = ([\d.]+)/ or die $answer;
	return $1;
}

END
{
	system("pg_ctl -D '$dir/data' -m immediate stop > /dev/null 2>&1") if $started;
}

run('initdb', '-D', "$dir/data", '-U', 'bench', '-A', 'trust', '--no-locale', '-E', 'UTF8');
open my $conf, '>>', "$dir/data/postgresql.conf" or die;
print $conf <<"END";
listen_addresses = ''
unix_socket_directories = '$dir'
shared_preload_libraries = 'outbox'
outbox.enabled = off
shared_buffers = 256MB
max_wal_size = 4GB
END
close $conf;
run('pg_ctl', '-D', "$dir/data", '-l', "$dir/server.log", '-w', 'start');
$started = 1;

sql(<<'END');
SET client_min_messages = warning;
CREATE EXTENSION outbox;
SELECT outbox.create_handler('h', '{invoice.*}', 'http://127.0.0.1:9/');
CREATE TABLE business (id bigserial PRIMARY KEY, customer int, amount numeric, note text);
-- The usual hand-written outbox.
CREATE TABLE plain (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), payload jsonb NOT NULL, done boolean NOT NULL DEFAULT false, created_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON plain (created_at) WHERE NOT done;
CREATE TABLE one_index (id uuid PRIMARY KEY, payload jsonb NOT NULL);
END
print sql('SELECT version()'), ', ', qx(nproc) =~ s/\n//r, " processors, medians of $rounds\n\n";

my @alone = (
	[ 'INSERT into a table with one index', 'INSERT INTO one_index VALUES (gen_random_uuid(), p)', 20000 ],
	[ 'INSERT into a hand-written outbox', 'INSERT INTO plain (payload) VALUES (p)', 20000 ],
	[ 'stage(), no handler', q{PERFORM outbox.stage('nobody', p)}, 20000 ],
	[ 'stage(), one handler', q{PERFORM outbox.stage('invoice.paid', p)}, 20000 ],
	[ 'stage(), one handler, dedupe_key', q{PERFORM outbox.stage('invoice.paid', p, dedupe_key => gen_random_uuid()::text)}, 20000 ],
	[ 'INSERT ... SELECT of 50,000 rows, one index', 'INSERT INTO one_index SELECT gen_random_uuid(), p FROM generate_series(1, 50000)', 1 ],
	[ 'stage_many() of 50,000 messages, one handler', q{PERFORM outbox.stage_many('invoice.paid', array_fill(p, ARRAY[50000]))}, 1 ]);
my %cost;
foreach my $round (1 .. $rounds)
{
	foreach my $case (@alone)
	{
		my ($name, $statement, $n) = @$case;
		my $each = cost($statement, $n);
		push @{ $cost{$name} }, $name =~ /50,000/ ? $each / 50000 : $each;
	}
}
printf "%-50s %8.2f us\n", $_->[0], median(@{ $cost{ $_->[0] } }) foreach @alone;
printf "%-50s %8.0f /s\n", 'stage_many()', 1e6 / median(@{ $cost{ $alone[-1][0] } });

my $begin = "\\set c random(1, 100000)\nBEGIN;\nINSERT INTO business (customer, amount, note) VALUES (:c, 12.5, 'a note about this order');\n";
my $payload = "jsonb_build_object('invoice', :c::int, 'customer', 'some customer name', 'note', repeat('x', 120))";
my %script = (
	plain => "${begin}INSERT INTO plain (payload) VALUES ($payload);\nCOMMIT;\n",
	stage => "${begin}SELECT outbox.stage('invoice.paid', $payload);\nCOMMIT;\n");
print "\nA business INSERT and a message in one transaction, transactions/s (hand-written outbox, stage(), ratio):\n";
foreach my $setting ('on', 'off')
{
	sql("ALTER DATABASE postgres SET synchronous_commit = $setting");
	foreach my $clients (1, 8)
	{
		my %tps;
		foreach my $round (1 .. $rounds)
		{
			push @{ $tps{$_} }, tps($clients, $script{$_}) foreach $round % 2 ? qw(plain stage) : qw(stage plain);
		}
		printf "synchronous_commit = %-3s %d client(s) %18.0f %8.0f %6.2f\n", $setting, $clients,
		  median(@{ $tps{plain} }), median(@{ $tps{stage} }), median(@{ $tps{stage} }) / median(@{ $tps{plain} });
	}
}
sql('ALTER DATABASE postgres RESET synchronous_commit');

print "\nWith 10,000 more handlers:\n";
my $begun = time;
sql(q{SELECT outbox.create_handler('many' || i, ARRAY['many.' || i, 'prefix.' || i || '.*'], 'http://127.0.0.1:9/') FROM generate_series(1, 10000) i});
printf "%-50s %8.2f ms\n", 'creating one', (time - $begun) * 1000 / 10000;
printf "%-50s %8.2f ms\n", 'first stage() of a session', median(map { cost(q{PERFORM outbox.stage('invoice.paid', p)}, 1) } 1 .. $rounds) / 1000;
printf "%-50s %8.2f us\n", 'stage(), one handler takes it', median(map { cost(q{PERFORM outbox.stage('invoice.paid', p)}, 20000) } 1 .. $rounds);
