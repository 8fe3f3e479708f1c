# What README.md, CONTRIBUTING.md and doc/ show can be done: every block of SQL
# is run in the order it stands, each page in a database and with roles of its
# own, and every block of shell, though what installs and builds is only looked at.  What they
# show as the answer is what comes.  (JavaScript: 306; drivers: 220; blocks that
# name a file, as those of doc/recipes: 230 and others.)
use strict;
use warnings;

use File::Basename qw(basename dirname);
use File::Copy qw(copy);
use HttpReceiver;
use IPC::Run;
use OutboxCluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $root = dirname(__FILE__) . '/../..';
my @pages = map { s{^\Q$root\E/}{}r } "$root/README.md", "$root/CONTRIBUTING.md", sort(glob "$root/doc/*.md"), sort(glob "$root/doc/*/*.md");
my $receiver = HttpReceiver->start;
# Each page has a database, and what it calls needs workers beside their dispatchers.
my $node = OutboxCluster->create('docs', extension => 0, conf => "max_worker_processes = 60\n");
$node->sql("ALTER SYSTEM SET log_min_messages = 'warning'");

# The fenced blocks of a page: language, text and the line that they begin on.
sub blocks
{
	my $text = shift;
	my @blocks;
	while ($text =~ /^```(\w*)\n(.*?)^```$/msg)
	{
		my ($language, $block) = ($1, $2);
		push @blocks, { language => $language, text => $block, line => 2 + (() = substr($text, 0, $-[0]) =~ /\n/g) };
	}
	return @blocks;
}

sub run_sql
{
	my ($database, $sql) = @_;
	my ($out, $error) = ('', '');
	# The examples' receivers are one that is there; nothing leaves this machine.
	$sql =~ s{https://[\w.-]+\.example(?=/)}{ $receiver->url('') =~ s{/$}{}r }ge;
	# Nobody has the time.
	$sql =~ s/wait\('(\w+)', '30 s'\)/wait('$1', '100 ms')/g;
	IPC::Run::run([ 'psql', '-XqA', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database) ], '<', \$sql, '>', \$out, '2>', \$error);
	return ($out, $error);
}

# Shell: what would install, build or test is looked at; all else runs.
my $folder = $node->basedir . '/shell';
mkdir $folder;
my $shims = <<'END';
apt-get() { [ "$1" = install ]; }
make() { case "$*" in */path/to/*) return 0 ;; *installcheck*) command make -C "$ROOT" -n installcheck > /dev/null ;; *) command make -C "$ROOT" -n "$@" > /dev/null ;; esac; }
prove() { [ -f "$ROOT/$1" ]; }
END

sub run_shell
{
	my $text = shift;
	my ($out, $error) = ('', '');
	# A script of the tree: is it there, and does it take these files and options?
	$text =~ s{^((?:\w+=\S+ )?)(?:\./)?(test/[\w/]+)}{looks_right $2}gm;
	my $script = $shims . "looks_right() { [ -x \"\$ROOT/\$1\" ] && bash -n \"\$ROOT/\$1\" || return 1; local s=\$1 a; shift; for a in \"\$@\"; do case \$a in "
	  . "*/*.pl) [ -f \"\$ROOT/test/\$a\" ] || return 1 ;; *.sql) ls \"\$ROOT\"/test/*/sql/\$a > /dev/null || return 1 ;; "
	  . "--*) grep -qe \"\${a%%=*}\" \"\$ROOT/\$s\" \"\$ROOT\"/test/lib/*.p[lm] || return 1 ;; esac; done; }\nset -e\n$text";
	IPC::Run::run([ 'bash', '-c', $script ], '<', \undef, '>', \$out, '2>', \$error, init => sub { chdir $folder; $ENV{ROOT} = $ENV{TESTDIR} || $root })
	  or $error .= "\nexit status";
	return ($out, $error);
}

my %ran;
my %answers;
foreach my $page (@pages)
{
	my $database = lc basename($page, '.md') =~ tr/-/_/r;
	my $text = slurp_file("$root/$page");
	$node->sql("CREATE DATABASE $database");
	$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', $database) unless $page eq 'README.md';
	foreach my $block (blocks($text))
	{
		my ($out, $error);
		next if $block->{text} =~ m{\A(?://|#|--|;) [\w./-]+\.\w+\n};
		if ($block->{language} eq 'sql')
		{
			($out, $error) = run_sql($database, $block->{text});
		}
		elsif ($block->{language} eq 'sh')
		{
			($out, $error) = run_shell($block->{text});
		}
		else
		{
			next;
		}
		is($error, '', "$page, line $block->{line}: $block->{language}") or diag($block->{text});
		$ran{ $block->{language} }++;
		push @{ $answers{$page} }, { %$block, out => $out };
	}
	# So that pages stand by themselves, the roles of one are out of the way of the next.
	$node->sql("ALTER ROLE \"$_\" RENAME TO \"$database: $_\"")
	  foreach split /\n/, $node->sql("SELECT rolname FROM pg_roles WHERE NOT rolsuper AND rolname !~ '^pg_|: '");
}
cmp_ok($ran{sql}, '>=', 20, 'there are blocks of SQL');
cmp_ok($ran{sh}, '>=', 5, 'and of shell');

# --- packages that pages name are those that the quick start installs
my ($setup) = slurp_file("$root/test/lib/setup.sh") =~ /(debian_install_for_build\(\).*?\n\}.*?debian_install_server\(\).*?\n\})/s;
my %installed = map { $_ => 1 } map { split ' ' } $setup =~ /debian_install ((?:[\w\$".-]+ ?)+)/g;
foreach my $page ('doc/installing.md', 'CONTRIBUTING.md')
{
	my ($packages) = slurp_file("$root/$page") =~ /^apt-get install (.*)$/m;
	is(join(' ', grep { !$installed{$_} && !$installed{ '"' . s/15$/\$major/r . '"' } } split ' ', $packages), '', "$page: the packages are those that the quick start installs");
}

# --- what the front page shows of the first message
my @shown = blocks(slurp_file("$root/README.md"));
my ($request) = grep { $_->{text} =~ /^POST / } @shown;
my ($got) = grep { $_->{body} =~ /"invoice": 42/ && $_->{headers}{'outbox-handler'} eq 'accounting' } $receiver->requests('/hooks');
my ($lines, $body) = $request->{text} =~ /^POST \S+ HTTP.1\.1\n(.*?)\n\n(.*?)\n/s;
my %lines = map { split /: /, $_, 2 } split /\n/, $lines;
is_deeply([ grep { !exists $got->{headers}{$_} } sort keys %lines ], [], 'README.md: the request has these headers');
is($got->{headers}{$_}, $lines{$_}, "README.md: $_") foreach grep { !/^(?:webhook-|idempotency)/ } sort keys %lines;
is($got->{headers}{'idempotency-key'}, $got->{headers}{'webhook-id'}, 'README.md: one id');
is($got->{body}, $body, 'README.md: the body');
my ($receipt) = grep { $_->{text} =~ /^postgres=# SELECT/ } @shown;
my ($query, $table) = $receipt->{text} =~ /^postgres=# (SELECT .*?;)\n(.*)/s;
my ($answer) = $node->sql("SELECT string_agg(handler || ' ' || topic || ' ' || state || ' ' || attempts, ', ' ORDER BY message_id) FROM (SELECT * FROM outbox.deliveries WHERE handler = 'accounting' ORDER BY message_id LIMIT 1) d", 'readme');
is($answer, join(' ', map { s/^\s+|\s+$//gr } (split /\|/, (split /\n/, $table)[2])[ 0 .. 3 ]), 'README.md: the receipt');
my (undef, $wrong) = run_sql('readme', $query);
is($wrong, '', 'README.md: and the query that shows it');

# --- and its own page of a watched table
my ($change) = grep { $_->{text} =~ /"kind": "updated"/ } blocks(slurp_file("$root/doc/watched-tables.md"));
is($node->sql('SELECT payload = ' . $node->quote($change->{text}) . "::jsonb AND key = 'orders:42' FROM outbox.message WHERE topic = 'shop.order.updated'", 'watched_tables'), 't', 'doc/watched-tables.md: what a watched table says');

# --- keys that were made by hand are keys
my ($keys) = grep { $_->{language} eq 'sh' && $_->{text} =~ /openssl/ } @{ $answers{'doc/receivers.md'} };
my %key = map { /^(\w+?)_/ => $_ } split /\n/, $keys->{out};
is(join(' ', sort keys %key), 'whpk whsec whsk', 'doc/receivers.md: three keys are made');
is($node->sql("SELECT outbox_internal.public_key('$key{whsk}')", 'receivers'), $key{whpk}, 'of which two are a pair');
is($node->sql("SELECT outbox_internal.public_key('$key{whsec}') IS NULL", 'receivers'), 't', 'and the other one stands for itself');

done_testing();
