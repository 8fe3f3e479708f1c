# doc/recipes/migrations.md: the parts that are the superuser's and the
# application's, up and down, and the migration files of Alembic and Django.
# (Those of Node's libraries: suite npm.)
use strict;
use warnings;

use File::Path qw(make_path);
use IPC::Run;
use OutboxCluster;
use Recipes;
use Test::More;

my $node = OutboxCluster->create('main', extension => 0);
my $folder = $node->basedir . '/migrations';
my $page = Recipes->read('doc/recipes/migrations.md');
$page->write($folder);
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my $url = 'https://billing.example/hooks';

sub database
{
	my $name = shift;
	$node->sql("CREATE DATABASE $name");
	my $bootstrap = $page->text('bootstrap.sql');
	$bootstrap =~ s/^CREATE ROLE.*\n//mg if $node->sql("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop_app')") eq 't';
	$node->sql("SET client_min_messages = warning; $bootstrap", $name);
	$node->sql("GRANT CREATE ON DATABASE $name TO shop_owner", $name);
	return;
}

sub run_as_owner
{
	my ($database, $name, @command) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($out, $error) = ('', '');
	my $done = IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$error,
		init => sub { chdir $folder; @ENV{qw(PGHOST PGPORT PGDATABASE PGUSER BILLING_URL)} = ($node->host, $node->port, $database, 'shop_owner', $url) },
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	ok($done, $name) or diag($out . $error);
	return $out . $error;
}

my $is_there = "SELECT string_agg(handler || ' ' || url, ', ') || ' ' || has_function_privilege('shop_app', 'outbox.stage'::regproc, 'EXECUTE') FROM outbox.handlers";

sub write_file
{
	my ($name, $text) = @_;
	open my $out, '>', "$folder/$name" or die "$folder/$name: $!";
	print $out $text;
	close $out;
	return;
}

# --- SQL by itself
database('by_hand');
my @psql = ('psql', '-XqA', '-v', 'ON_ERROR_STOP=1', '-1', '-f');
run_as_owner('by_hand', 'up.sql', @psql, 'up.sql');
is($node->sql($is_there, 'by_hand'), "billing $url true", 'there are the handler and the grant');
like(run_as_owner('by_hand', 'up.sql again', @psql, 'up.sql'), qr/^\{\}$/m, 'run again it changes nothing');
run_as_owner('by_hand', 'down.sql', @psql, 'down.sql');
is($node->sql("SELECT count(*) || ' ' || has_function_privilege('shop_app', 'outbox.stage'::regproc, 'EXECUTE') FROM outbox.handlers", 'by_hand'), '0 false', 'down.sql takes both back');
foreach my $role (qw(shop_owner shop_app))
{
	my (undef, undef, $refused) = $node->psql('by_hand', 'SELECT outbox.adopt()', extra_params => [ '-U', $role ]);
	like($refused, qr/permission denied/, "$role has no more rights than were granted");
}
run_as_owner('by_hand', 'Prisma\'s file, as one script', @psql, 'prisma/migrations/20260101000000_outbox/migration.sql');
is($node->sql($is_there, 'by_hand'), "billing $url true", 'does the same');
run_as_owner('by_hand', 'its owner watches a table of its own', 'psql', '-XqA', '-v', 'ON_ERROR_STOP=1', '-c', "CREATE TABLE shop.t (id int PRIMARY KEY)", '-c', "SELECT outbox.watch('shop.t')");

# --- a template for tests
$node->sql("CREATE DATABASE shop_test TEMPLATE by_hand");
$node->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'shop_test'", 'held', 'a database from a template sends nothing', 'shop_test');
is($node->sql("SELECT outbox.stage('shop.order.placed') IS NOT NULL", 'shop_test'), 't', 'but takes messages');

# --- Alembic
SKIP:
{
	skip 'alembic is not installed', 1 if system("$python -c 'import alembic, psycopg2' > /dev/null 2>&1") != 0;
	database('by_alembic');
	write_file('alembic/env.py', <<'END');
from alembic import context
from sqlalchemy import create_engine
with create_engine('postgresql+psycopg2://').connect() as connection:
    context.configure(connection=connection, version_table_schema='shop')
    with context.begin_transaction():
        context.run_migrations()
END
	my $program = "import sys; from alembic import command; from alembic.config import Config; c = Config(); c.set_main_option('script_location', 'alembic'); getattr(command, sys.argv[1])(c, sys.argv[2])";
	run_as_owner('by_alembic', 'alembic upgrade', $python, '-c', $program, 'upgrade', 'head');
	is($node->sql($is_there, 'by_alembic'), "billing $url true", 'alembic: there are the handler and the grant');
	run_as_owner('by_alembic', 'alembic downgrade', $python, '-c', $program, 'downgrade', 'base');
	is($node->sql('SELECT count(*) FROM outbox.handlers', 'by_alembic'), '0', 'alembic: the handler is gone');
}

# --- Django
SKIP:
{
	skip 'django is not installed', 1 if system("$python -c 'import django, psycopg2' > /dev/null 2>&1") != 0;
	database('by_django');
	$node->sql('GRANT CREATE ON SCHEMA public TO shop_owner', 'by_django');
	write_file("django/shop/$_", '') foreach '__init__.py', 'migrations/__init__.py';
	write_file('django/manage.py', <<'END');
import os, sys, django
from django.conf import settings
from django.core.management import call_command
settings.configure(INSTALLED_APPS=['shop'], USE_TZ=True, DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql',
    'NAME': os.environ['PGDATABASE'], 'HOST': os.environ['PGHOST'], 'PORT': os.environ['PGPORT'], 'USER': os.environ['PGUSER']}})
django.setup()
call_command('migrate', 'shop', *sys.argv[1:], verbosity=0)
END
	run_as_owner('by_django', 'django: migrate', $python, 'django/manage.py');
	is($node->sql($is_there, 'by_django'), "billing $url true", 'django: there are the handler and the grant');
	run_as_owner('by_django', 'django: migrate zero', $python, 'django/manage.py', 'zero');
	is($node->sql('SELECT count(*) FROM outbox.handlers', 'by_django'), '0', 'django: the handler is gone');
}

$node->stop;
done_testing();
