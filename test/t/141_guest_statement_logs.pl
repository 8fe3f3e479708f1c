# A tool that watches statements and logs their parameters sees no secret,
# whether it was given or generated: pgaudit, told to log everything.
use strict;
use warnings;

use OutboxCluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $libdir = qx("$ENV{PG_CONFIG}" --pkglibdir);
chomp $libdir;
plan skip_all => 'pgaudit is not installed' unless -e "$libdir/pgaudit.so";

my $node = OutboxCluster->create('main', preload => 0, conf => <<'END');
shared_preload_libraries = 'outbox, pgaudit'
pgaudit.log = 'all'
pgaudit.log_parameter = on
pgaudit.log_relation = on
pgaudit.log_catalog = on
log_parameter_max_length = -1
END

# Callers have their secrets in a table, so that their own statements show none.
my %given = (secret => 'whsec_' . 'Z2l2ZW4gYXMgYSBzZWNyZXQgb25lIHR3bw==', other => 'whsec_' . 'YW5vdGhlciBzZWNyZXQgdGhhdCB3YXMgZ2l2ZW4=', token => 'Bearer 7c2f-token');
$node->sql('CREATE TABLE vault (name text, value text)');
open my $file, '>', $node->basedir . '/vault' or die $!;
print $file "$_\t$given{$_}\n" foreach sort keys %given;
close $file;
$node->sql("COPY vault FROM '" . $node->basedir . "/vault'");
my $url = 'http://127.0.0.1:9/';

$node->sql(<<"END");
SELECT outbox.create_handler('given', '{given.*}', '$url', secret => s.value, "authorization" => t.value)
FROM vault s, vault t WHERE s.name = 'secret' AND t.name = 'token';
SELECT outbox.alter_handler('given', secret => value) FROM vault WHERE name = 'other';
SELECT outbox.ensure_handler('given', '{given.*}', '$url', secret => s.value, "authorization" => t.value)
FROM vault s, vault t WHERE s.name = 'secret' AND t.name = 'token';
SELECT outbox.ensure_handler('given', '{given.*}', '$url', secret => s.value, "authorization" => t.value)
FROM vault s, vault t WHERE s.name = 'secret' AND t.name = 'token';
SELECT outbox.create_handler('generated', '{generated.*}', '$url');
SELECT outbox.rotate_secret('generated');
END
my $rotated = $node->sql("SELECT outbox.rotate_secret('generated', '1 day')");
like($rotated, qr/^whsec_/, 'a secret was rotated');
is($node->sql("SELECT outbox.rotate_secret('given', '0') LIKE 'whsec_%'"), 't', 'another one, too');

# What must not be in the log, read by a session that pgaudit leaves alone.
my @secrets = split /\n/, $node->sql("SET pgaudit.log = 'none'; SELECT secret FROM outbox.handler_secret");
is(scalar(@secrets), 4, 'the tables hold what was generated and given last');
my $log = slurp_file($node->logfile);
like($log, qr/AUDIT: .*outbox_internal\.store_secret/, 'the statements are in the log');
like($log, qr/AUDIT: .*outbox_internal\.create_handler.*withheld/, 'with their parameters');
foreach my $secret (@secrets, values %given)
{
	(my $hidden = $secret) =~ s/^(whsec_|whsk_|Bearer )//;
	is(index($log, $hidden), -1, 'but not this secret');
}

# Bad ones are refused as before, and nothing is kept of them.
foreach my $bad ("secret => 'short'", "\"authorization\" => E'a\\nb'", "\"authorization\" => ''")
{
	my ($code, undef, $error) = $node->psql('postgres', "SELECT outbox.alter_handler('given', $bad)");
	isnt($code, 0, "$bad is refused");
	like($error, qr/HINT/, 'with a hint');
}
is($node->sql("SELECT count(*) FROM outbox.handler_secret WHERE secret IN (SELECT value FROM vault WHERE name = 'token')"), 1, 'and changed nothing');

done_testing;
