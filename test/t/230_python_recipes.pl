# doc/recipes/python.md does what it says, with the libraries that Debian has;
# and no page of doc/recipes shows what no test runs.  (JavaScript: suite npm.)
use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Run;
use OutboxCluster;
use PlacedOrders;
use Recipes;
use Test::More;

my $node = OutboxCluster->create('main');
my $folder = $node->basedir . '/python';
my $page = Recipes->read('doc/recipes/python.md');
$page->write($folder);
$node->sql($_) foreach $page->sql;
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my $program = "$ENV{TESTDIR}/test/lib/recipes/place_orders.py";

# Can all of these be imported?
sub has
{
	my $modules = join ', ', @_;
	return system("$python -c 'import $modules' > /dev/null 2>&1") == 0;
}

my %needs = (psycopg => ['psycopg'], sqlalchemy => [ 'sqlalchemy', 'psycopg2' ], django => [ 'django', 'psycopg2' ]);
is(join(' ', $page->files), 'payload.py ' . join(' ', map { "with_$_.py" } sort keys %needs), 'the page has these recipes');
foreach my $library (sort keys %needs)
{
	SKIP:
	{
		skip "$library is not installed", 1 unless has(@{ $needs{$library} });
		PlacedOrders::try($node, $library, command => [ $python, $program, "with_$library" ], in => $folder, order_id => '9007199254740993');
	}
}

# --- an order whose message fails, within the library's savepoint
my %keep = (psycopg => <<'END', sqlalchemy => <<'END', django => <<'END');
from with_psycopg import connection, psycopg
with connection.transaction():
    connection.execute(order)
    connection.execute(good)
    try:
        with connection.transaction():
            connection.execute(bad)
    except psycopg.Error:
        print(connection.execute("SELECT id, status FROM outbox.try_stage('No topic')").fetchone())
END
from with_sqlalchemy import Session, text
from sqlalchemy.exc import DBAPIError
with Session.begin() as session:
    session.execute(text(order))
    session.execute(text(good))
    try:
        with session.begin_nested():
            session.execute(text(bad))
    except DBAPIError:
        print(session.execute(text("SELECT id, status FROM outbox.try_stage('No topic')")).fetchone())
END
import django
from django.conf import settings
settings.configure(USE_TZ=True, DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': os.environ['PGDATABASE'],
    'HOST': os.environ['PGHOST'], 'PORT': os.environ['PGPORT'], 'USER': os.environ['PGUSER']}})
django.setup()
from with_django import connection, transaction
from django.db import DatabaseError
with transaction.atomic(), connection.cursor() as cursor:
    cursor.execute(order)
    cursor.execute(good)
    try:
        with transaction.atomic():
            cursor.execute(bad)
    except DatabaseError:
        cursor.execute("SELECT id, status FROM outbox.try_stage('No topic')")
        print(cursor.fetchone())
END
foreach my $library (sort keys %keep)
{
	SKIP:
	{
		skip "$library is not installed", 1 unless has(@{ $needs{$library} });
		my ($out, $error) = ('', '');
		my $script = "import os, sys\nsys.path.insert(0, os.getcwd())\norder = \"INSERT INTO shop.orders VALUES (1, 'Ada', 1)\"\n"
		  . "good = \"SELECT outbox.stage('a.b', '1')\"\nbad = \"SELECT outbox.stage('No topic', '2')\"\n$keep{$library}";
		$node->sql('TRUNCATE shop.orders, outbox.message');
		IPC::Run::run([ $python, '-c', $script ], '>', \$out, '2>', \$error,
			init => sub { chdir $folder; @ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ($node->host, $node->port, 'postgres', 'shop_app') });
		is($out . $error, "(None, 'invalid')\n", "$library: a savepoint keeps the transaction, and try_stage says what is wrong");
		is($node->sql("SELECT (SELECT count(*) FROM shop.orders) || ' ' || (SELECT string_agg(payload::text, ' ') FROM outbox.message)"), '1 1', "$library: the order is kept, and the message that was good");
	}
}

# --- the table of values
SKIP:
{
	skip 'psycopg is not installed', 1 unless has('psycopg');
	my $script = <<'END';
import datetime, json, sys, os
sys.path.insert(0, os.getcwd())
from payload import to_payload
from with_psycopg import connection, psycopg
def refuse(value):
    try:
        return to_payload(value)
    except Exception as error:
        return type(error).__name__
stage = lambda *given, more='': connection.execute('SELECT outbox.stage(%s, %s::jsonb' + more + ')', ('a.b', *given)).fetchone()[0]
def sqlstate(*given):
    try:
        return type(stage(*given)).__name__
    except psycopg.Error as error:
        return error.sqlstate
moment = datetime.datetime(2090, 1, 1, tzinfo=datetime.timezone.utc)
print(to_payload(None), refuse(float('nan')), refuse(object()), sqlstate(None), sqlstate('NaN'), sqlstate(to_payload(None)))
stage('1', moment, more=', deliver_at => %s')
stage('2', datetime.timedelta(days=3650), more=', delay => %s')
stage('3', json.dumps({'x-a': 'b'}), more=', headers => CAST(%s AS jsonb)')
END
	my ($out, $error) = ('', '');
	$node->sql('TRUNCATE outbox.message');
	$node->handler('later', ['a.b'], undef);
	IPC::Run::run([ $python, '-c', $script ], '>', \$out, '2>', \$error,
		init => sub { chdir $folder; @ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ($node->host, $node->port, 'postgres', 'shop_app') });
	is($error, '', 'values: no complaint');
	is($out, "null ValueError TypeError 22004 22P02 UUID\n", 'values: what JSON has not, and null in its two forms');
	is($node->sql("SELECT due_at = '2090-01-01 00:00+00' FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE payload = '1'"), 't', 'a time is deliver_at');
	is($node->sql("SELECT d.due_at - d.staged_at BETWEEN '3649 days' AND '3651 days' FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE payload = '2'"), 't', 'a timedelta is a delay');
	is($node->sql("SELECT headers ->> 'x-a' FROM outbox.message WHERE payload = '3'"), 'b', 'a dict is headers');
}

# --- every page
foreach my $file (sort glob "$ENV{TESTDIR}/doc/recipes/*.md")
{
	my $name = 'doc/recipes/' . ($file =~ s{.*/}{}r);
	is(join("\n", Recipes->read($name)->unnamed), '', "$name: every block says which file it is");
}

$node->stop;
done_testing();
