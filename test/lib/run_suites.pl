#!/usr/bin/perl
# Run the suites in a built and installed tree, as an ordinary user, and
# count.  Started by test/run in its temporary copy; may be started by hand
# in a tree whose build is installed: perl test/lib/run_suites.pl [file]...
#
# The last line is "N passed, N failed", the sum over all suites; the exit
# status is 0 if nothing failed and something ran.
use strict;
use warnings;

use Cwd qw(getcwd);
use File::Basename qw(basename);
use File::Path qw(make_path);
use Getopt::Long;
use TAP::Harness;
use TAP::Parser::Aggregator;

$| = 1;

my $jobs = 2;
my $verbose = 0;
GetOptions('jobs=i' => \$jobs, 'verbose' => \$verbose) or exit 2;

my $tree = getcwd();
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
my %pg = map { $_ => pg_config($_) } qw(bindir pgxs sharedir pkglibdir);
(my $pgxs_test = $pg{pgxs}) =~ s{/makefiles/pgxs\.mk$}{/test};
my $tmp = "$tree/tmp_check";
make_path($tmp);

$ENV{PATH} = "$pg{bindir}:$ENV{PATH}";
$ENV{PERL5LIB} = join ':', "$tree/test/lib", "$pgxs_test/perl", $ENV{PERL5LIB} || ();
$ENV{PG_REGRESS} = "$pgxs_test/regress/pg_regress";
$ENV{PG_CONFIG} = $pg_config;
$ENV{LC_ALL} = 'C.UTF-8';
delete @ENV{ grep { /^PG(HOST|PORT|USER|DATABASE|SERVICE|PASSWORD|OPTIONS|DATA|APPNAME)/ } keys %ENV };
# How long a test waits for what ought to come about (Patience.pm).
$ENV{PG_TEST_TIMEOUT_DEFAULT} ||= 120;
$ENV{PGCTLTIMEOUT} ||= 2 * $ENV{PG_TEST_TIMEOUT_DEFAULT};
delete @ENV{qw(http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY)};

# The suites, in the order they run: the cheap ones first.
my @suites = (
	[ unit => 'test/unit', qr/_test\.c$/, \&run_unit ],
	[ regress => 'test/regress/sql', qr/\.sql$/, \&run_regress ],
	[ isolation => 'test/isolation/specs', qr/\.spec$/, \&run_isolation ],
	[ pgtap => 'test/pgtap', qr/\.sql$/, \&run_pgtap ],
	[ tap => 'test/t', qr/\.pl$/, \&run_tap ],
	[ npm => 'test/npm', qr/\.pl$/, \&run_tap ],
	[ ha => 'test/ha', qr/\.pl$/, \&run_tap ],
	[ long => 'test/long', qr/\.pl$/, \&run_tap ]);

# Suites that take their time, or need a registry of packages or other people's
# servers, run only when they are asked for.
my %on_demand = (npm => 1, ha => 1, long => 1);

# Files of tap that take longest, the longest first.  They start first, so that
# none of them runs alone in the end.
my @longest = qw(110_guest_databases 340_hostile 401_ordered_crash 006_docs 131_guest_backups 350_tls
  120_guest_extension 360_names 220_drivers 301_verifiers 310_policies 304_handler_options 040_databases
  510_claims_under_load 305_large_payloads 066_memory 127_guest_release);

my ($passed, $failed, $skipped) = (0, 0, 0);
my @failures;
my %skipped_for;	# file and reason => how many tests

my %chosen = choose(@ARGV);
my $started = time;
foreach my $suite (@suites)
{
	my ($name, undef, undef, $run) = @$suite;
	my @files = @{ $chosen{$name} || [] } or next;
	my $before = time;
	print "\n== $name\n";
	$run->(@files);
	printf "== %s took %d s\n", $name, time - $before;
}
count_assertions();

print "\n";
print "FAILED: $_\n" foreach @failures;
print "SKIPPED: $_ ($skipped_for{$_})\n" foreach sort keys %skipped_for;
print "$skipped skipped\n" if $skipped;
printf "took %d s\n", time - $started;
print "$passed passed, $failed failed\n";
exit($failed == 0 && $passed > 0 ? 0 : 1);

sub pg_config
{
	my $what = shift;
	my $answer = qx("$pg_config" --$what);
	die "$pg_config --$what failed\n" if $? != 0;
	chomp $answer;
	return $answer;
}

# Turn what was asked for into files of suites.  Nothing asked for: all.
sub choose
{
	my @wanted = @_;
	my %all;
	foreach my $suite (@suites)
	{
		my ($name, $dir, $pattern) = @$suite;
		$all{$name} = [ sort grep { $_ =~ $pattern } glob "$dir/*" ];
	}
	return map { $_ => $all{$_} } grep { !$on_demand{$_} } keys %all unless @wanted;

	my %chosen;
	foreach my $wanted (@wanted)
	{
		if ($all{$wanted})
		{
			$chosen{$wanted} = $all{$wanted};
			next;
		}
		my $hits = 0;
		foreach my $name (keys %all)
		{
			foreach my $file (grep { m{(?:^|/)\Q$wanted\E$} } @{ $all{$name} })
			{
				push @{ $chosen{$name} }, $file;
				$hits++;
			}
		}
		die "no suite or test file is called $wanted\n" unless $hits;
	}
	return %chosen;
}

sub count_failure
{
	my $what = shift;
	push @failures, $what;
	$failed++;
}

# A server's assertion that failed is a failure even if the test did not mind:
# many tests have servers crash, and what comes back after a crash.
sub count_assertions
{
	foreach my $log (sort glob "$tmp/log/*.log $tmp/*/log/postmaster.log $tmp/pgtap/server.log")
	{
		open my $in, '<', $log or next;
		while (my $line = <$in>)
		{
			next unless $line =~ /^TRAP: /;
			print $line;
			count_failure('an assertion failed: ' . basename($log));
		}
	}
	return;
}

sub show_file
{
	my ($file, $last) = @_;
	open my $in, '<', $file or return;
	my @lines = <$in>;
	close $in;
	splice @lines, 0, @lines - $last if $last && @lines > $last;
	print "---- $file\n", @lines, "----\n";
}

# Run a command, show its output as it comes, return it and the exit status.
sub run_command
{
	my @command = @_;
	my $pid = open my $out, '-|';
	die "cannot fork: $!\n" unless defined $pid;
	if (!$pid)
	{
		open STDERR, '>&', \*STDOUT;
		exec @command or die "cannot run $command[0]: $!\n";
	}
	my $text = '';
	while (my $line = <$out>)
	{
		print $line;
		$text .= $line;
	}
	close $out;
	return ($text, $?);
}

sub count_tap
{
	my ($harness, @tests) = @_;
	my $aggregate = TAP::Parser::Aggregator->new;
	$aggregate->start;
	$harness->callback(
		made_parser => sub {
			my ($parser, $job) = @_;
			$parser->callback(test => sub { $skipped_for{ $job->[1] . ': ' . $_[0]->explanation }++ if $_[0]->has_skip; });
		});
	# A test that bails out ends the harness: what ran before it counts.
	eval { $harness->aggregate_tests($aggregate, @tests); 1 } or count_failure("stopped: $@");
	$aggregate->stop;
	$harness->summary($aggregate);
	$passed += $aggregate->passed - $aggregate->skipped;
	$skipped += $aggregate->skipped;
	$failed += $aggregate->failed;
	foreach my $name ($aggregate->descriptions)
	{
		my ($parser) = $aggregate->parsers($name);
		my @bad = $parser->failed;
		push @failures, "$name test $_" foreach @bad;
		# A test that died or broke its plan counts once more, so that it
		# cannot end as "0 failed".
		count_failure("$name ended badly") if !@bad && $parser->has_problems;
		next unless defined $parser->skip_all;
		$skipped++;
		$skipped_for{"$name: " . $parser->skip_all} = 'all of it';
	}
	return $aggregate;
}

sub run_unit
{
	my @programs = map { s/\.c$//r } @_;
	my (undef, $status) = run_command('make', '-s', '-j2', "PG_CONFIG=$pg_config", 'with_llvm=no', 'WERROR=1', @programs);
	return count_failure('the unit tests do not build') if $status;
	# A checker to run them under, if one is named.
	my @under = split ' ', $ENV{UNIT_VALGRIND} ? "valgrind $ENV{UNIT_VALGRIND}" : '';
	count_tap(TAP::Harness->new({ verbosity => $verbose, exec => \@under, color => 0, failures => 1, comments => 1 }),
		map { [ "$tree/$_", $_ ] } @programs);
}

# pg_regress and pg_isolation_regress print one line a test: "test x ... ok"
# up to PostgreSQL 15, "ok 1 - x" since.
sub run_pg_regress
{
	my ($what, $dir, @command) = @_;
	my ($text, $status) = run_command(@command);
	my $counted = 0;
	foreach my $line (split /\n/, $text)
	{
		my ($name, $ok);
		if ($line =~ /^(?:test|\s+)\s*(\S+)\s+\.\.\. (ok|FAILED|failed)/)
		{
			($name, $ok) = ($1, $2 eq 'ok');
		}
		elsif ($line =~ /^(not )?ok \d+\s+[-+] (\S+)/)
		{
			($name, $ok) = ($2, !$1);
		}
		else
		{
			next;
		}
		if ($ok)
		{
			$passed++;
		}
		else
		{
			count_failure("$what: $name");
			$counted++;
		}
	}
	return if $status == 0;
	count_failure("$what ended badly") unless $counted;
	show_file("$dir/regression.diffs");
	show_file("$dir/log/postmaster.log", 60);
}

# What both programs are told: a server of their own, with this configuration
# and the library preloaded or not.
sub regress_options
{
	my ($dir, $preload, @more) = @_;
	make_path($dir);
	my $config = "$dir/extra.conf";
	open my $out, '>', $config or die "$config: $!\n";
	print $out "max_prepared_transactions = 10\nlog_min_messages = warning\n";
	print $out "shared_preload_libraries = 'outbox'\n" if $preload;
	print $out map { "$_\n" } @more;
	close $out;
	return ("--bindir=$pg{bindir}", "--outputdir=$dir", "--temp-instance=$dir/instance",
		"--temp-config=$config", '--no-locale', '--encoding=UTF8', '--load-extension=outbox');
}

# With preload it is what "make installcheck" does on a server that has outbox:
# the first file, which makes what the others share, switches sending off.
sub run_regress
{
	my @tests = ('setup', grep { $_ ne 'setup' } map { basename($_, '.sql') } @_);
	foreach my $preload (1, 0)
	{
		my $what = $preload ? 'regress' : 'regress without preload';
		my $dir = $preload ? "$tmp/regress" : "$tmp/regress_bare";
		print "-- $what\n";
		run_pg_regress($what, $dir, $ENV{PG_REGRESS}, regress_options($dir, $preload),
			"--inputdir=$tree/test/regress", '--dbname=outbox_regression', @tests);
	}
}

sub run_isolation
{
	my @tests = map { basename($_, '.spec') } @_;
	my $dir = "$tmp/isolation";
	run_pg_regress('isolation', $dir, "$pgxs_test/isolation/pg_isolation_regress",
		# Nothing is sent, so that results do not depend on time; setup.sql says so to regress.
		regress_options($dir, 1, 'outbox.enabled = off'), "--inputdir=$tree/test/isolation", '--dbname=outbox_isolation', @tests);
}

# pgTAP files share one database and roll back what they do.
sub run_pgtap
{
	my @files = @_;
	my $dir = "$tmp/pgtap";
	make_path($dir);
	my @quiet = ("$dir/setup.log");
	my $socket = "$dir/s";
	make_path($socket);
	my $setup = sub {
		my @command = @_;
		my $line = join ' ', map { "'$_'" } @command;
		system("$line >> $quiet[0] 2>&1") == 0;
	};
	my $ok = -e "$pg{sharedir}/extension/pgtap.control"
	  && $setup->('initdb', '-D', "$dir/data", '-A', 'trust', '-N', '--no-locale', '-E', 'UTF8');
	if ($ok)
	{
		open my $conf, '>>', "$dir/data/postgresql.conf" or die "$dir/data/postgresql.conf: $!\n";
		print $conf "listen_addresses = ''\nunix_socket_directories = '$socket'\nfsync = off\n",
		  "shared_preload_libraries = 'outbox'\noutbox.enabled = off\n";
		close $conf;
		@ENV{qw(PGHOST PGPORT PGDATABASE)} = ($socket, 5432, 'postgres');
		$ok = $setup->('pg_ctl', '-D', "$dir/data", '-l', "$dir/server.log", '-w', 'start');
		if ($ok)
		{
			$ok = $setup->('psql', '-Xq', '-c', 'CREATE DATABASE outbox_pgtap')
			  && $setup->('psql', '-Xq', '-d', 'outbox_pgtap', '-c', 'CREATE EXTENSION outbox; CREATE EXTENSION pgtap');
			if ($ok)
			{
				local $ENV{PGDATABASE} = 'outbox_pgtap';
				count_tap(
					TAP::Harness->new(
						{
							verbosity => $verbose,
							color => 0,
							failures => 1,
							comments => 1,
							exec => [ 'psql', '-XqAt', '-P', 'pager=off', '-v', 'ON_ERROR_STOP=1', '-f' ]
						}),
					@files);
			}
			$setup->('pg_ctl', '-D', "$dir/data", '-m', 'immediate', 'stop');
		}
		delete @ENV{qw(PGHOST PGPORT PGDATABASE)};
	}
	return if $ok;
	count_failure('pgTAP could not be set up (is the pgtap extension installed for this PostgreSQL?)');
	show_file($quiet[0]);
	show_file("$dir/server.log", 60);
}

# A file of tap that does not end is stopped when it has run for as long as
# eight waits in vain, one of the others after an hour or more.  (Without a group
# of its own, so that an interrupt reaches it.)
sub tap_command
{
	my (undef, $file) = @_;
	return [ $^X, $file ] unless grep { -x "$_/timeout" } split /:/, $ENV{PATH};
	my $times = $file =~ m{\btest/t/} ? 8 : 60;
	return [ 'timeout', '--foreground', '--kill-after=30', $times * $ENV{PG_TEST_TIMEOUT_DEFAULT}, $^X, $file ];
}

sub run_tap
{
	my %place = map { $longest[$_] => $_ } 0 .. $#longest;
	my @files = sort { ($place{ basename($a, '.pl') } // @longest) <=> ($place{ basename($b, '.pl') } // @longest) || $a cmp $b } @_;
	local $ENV{TESTDIR} = $tree;
	local $ENV{TESTDATADIR} = $tmp;
	local $ENV{TESTLOGDIR} = "$tmp/log";
	make_path("$tmp/log");
	unlink "$tmp/log/waited_in_vain";
	my $aggregate = count_tap(TAP::Harness->new({ verbosity => $verbose, jobs => $jobs, color => 0, timer => 1, exec => \&tap_command }), @files);
	foreach my $name ($aggregate->descriptions)
	{
		my ($parser) = $aggregate->parsers($name);
		next unless $parser->has_problems;
		my $base = basename($name, '.pl');
		show_file($_, 80) foreach sort glob "$tmp/log/regress_log_$base $tmp/log/${base}_*.log";
	}
}
