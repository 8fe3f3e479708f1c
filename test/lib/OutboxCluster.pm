# A PostgreSQL server for tests of outbox: PostgreSQL::Test::Cluster with the
# library preloaded, settings that suit a test, and a few words for what such
# tests do all the time.
#
#   my $node = OutboxCluster->create('main');     # running, extension made
#   $node->handler('h', ['a.*'], $receiver->url('/h'), max_attempts => 3);
#   my $id = $node->stage('a.b', '{"n":1}');
#   $node->wait_for("SELECT state FROM outbox.deliveries", 'delivered');
#
# Nothing here sleeps for a fixed time: waiting is on a condition.
package OutboxCluster;

use strict;
use warnings;

use parent 'PostgreSQL::Test::Cluster';

use DirectSession;
use Patience;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file);	# all of them would hide methods of the same name
use ServerTemplate;
use Test::More;
use Time::HiRes qw(usleep time);

# Options: preload (default 1), conf (text for postgresql.conf), init (hash
# for init()), start (default 1), extension (default 1: CREATE EXTENSION in
# database postgres).
sub create
{
	my ($class, $name, %options) = @_;
	my $node = $class->new($name, %{ $options{cluster} || {} });
	# UTF-8 whatever the locale of whoever runs the test.
	my %init = %{ $options{init} || {} };
	$init{extra} = [ '--encoding=UTF8', '--no-locale', @{ $init{extra} || [] } ];
	$node->init(%init);
	$node->append_conf('postgresql.conf', <<"END");
log_statement = none
log_min_messages = info
max_connections = 60
max_worker_processes = 24
shared_buffers = 64MB
min_wal_size = 80MB
max_wal_size = 1GB
restart_after_crash = on
END
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'") if $options{preload} // 1;
	$node->append_conf('postgresql.conf', $options{conf}) if defined $options{conf};
	if ($options{start} // 1)
	{
		$node->start;
		$node->extension('postgres') if $options{extension} // 1;
	}
	return $node;
}

# As in the class above, from a copy of what initdb made.
sub init
{
	my ($self, @options) = @_;
	return ServerTemplate::with_copies(sub { $self->SUPER::init(@options) });
}

# CREATE EXTENSION in a database, which is created first unless it is postgres.
sub extension
{
	my ($self, $database) = @_;
	$self->safe_psql('postgres', "CREATE DATABASE \"$database\"") unless $database eq 'postgres';
	$self->safe_psql($database, 'SET client_min_messages = warning; CREATE EXTENSION outbox');
	return;
}

# When a process was started, as the kernel counts; undef if it is no more.
# What has died and was not waited for by anybody does not count.
sub started_at
{
	my $pid = shift;
	open my $stat, '<', "/proc/$pid/stat" or return;
	my ($state, @fields) = split ' ', (<$stat> // '') =~ s/^.*\)//sr;
	return if !defined $state || $state =~ /[ZX]/;
	return $fields[18];
}

# A server's processes, each with its start: the postmaster and its children.
sub processes
{
	my $postmaster = shift;
	my %started = ($postmaster => started_at($postmaster));
	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open my $stat, '<', $file or next;
		my ($pid, $parent) = (<$stat> // '') =~ /^(\d+) \(.*\) \S (\d+)/s or next;
		$started{$pid} = started_at($pid) if $parent == $postmaster;
	}
	return \%started;
}

# kill -9 of the postmaster.  What it leaves behind is remembered; stopped
# before, it cannot start another child that would be missed.
sub kill9
{
	my $self = shift;
	if (defined $self->{_pid})
	{
		kill 'STOP', $self->{_pid};
		$self->{left_behind} = processes($self->{_pid});
	}
	return $self->SUPER::kill9;
}

# Start after kill9(): the children of the postmaster that was killed need a
# moment to notice, and until then a new one refuses to start.  A postmaster
# that has ended but that nobody has waited for yet it takes for one that
# lives, as long as there are its lock files.
sub start_after_crash
{
	my $self = shift;
	my $end = time + Patience::seconds();
	my %left = %{ delete $self->{left_behind} || {} };
	while (my @alive = grep { defined $left{$_} && (started_at($_) // '') eq $left{$_} } keys %left)
	{
		die "processes of the killed server do not end: @alive\n" if time > $end;
		usleep(10_000);
	}
	unlink $self->data_dir . '/postmaster.pid', $self->host . '/.s.PGSQL.' . $self->port . '.lock' if %left;
	until ($self->start(fail_ok => 1))
	{
		die "server does not start after the crash\n" if time > $end;
		# A failed start takes the stale pid file for a running server.
		$self->{_pid} = undef;
		usleep(100_000);
	}
	return;
}

# Restart the server with other settings: what a dispatcher is told when it
# starts, or what is to be in force when this returns.
sub restart_with
{
	my ($self, %settings) = @_;
	$self->sql("ALTER SYSTEM SET $_ = " . $self->quote($settings{$_})) foreach sort keys %settings;
	$self->restart;
	return;
}

# Run SQL in database postgres, or in the one named last.
sub sql
{
	my ($self, $sql, $database) = @_;
	$database //= 'postgres';
	return $self->safe_psql($database, $sql) unless DirectSession::can_ask($self, $sql);
	my $session = DirectSession->new($self, $database) or die "connection error: $@";
	my ($answer, $error) = $session->ask($sql);
	die "error running SQL: ${error}with sql '$sql'" if $error ne '';
	return $answer;
}

# Run SQL that has to fail; returns the whole error text with its SQLSTATE.
sub sql_error
{
	my ($self, $sql, $database) = @_;
	my ($status, $out, $error) = $self->psql($database // 'postgres', $sql, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $status == 0 ? "no error, but: $out" : $error;
}

sub quote
{
	my ($self, $text) = @_;
	return 'NULL' unless defined $text;
	$text =~ s/'/''/g;
	$text =~ s/\\/\\\\/g;
	return $text =~ /\\/ ? "E'$text'" : "'$text'";
}

# outbox.create_handler() with options by name; a value that is a reference
# to a string is SQL as it stands.
sub handler
{
	my ($self, $name, $topics, $url, %options) = @_;
	my $database = delete $options{database};
	my $topic_list = join ', ', map { $self->quote($_) } @$topics;
	my $arguments = join '', map { ", $_ => " . (ref $options{$_} ? ${ $options{$_} } : $self->quote($options{$_})) } sort keys %options;
	return $self->sql(
		'SELECT outbox.create_handler(' . $self->quote($name) . ", ARRAY[$topic_list]::text[], " . $self->quote($url) . "$arguments)",
		$database);
}

# Stage one message and commit; returns its id.
sub stage
{
	my ($self, $topic, $payload, %options) = @_;
	my $database = delete $options{database};
	my $arguments = join '', map { ", $_ => " . (ref $options{$_} ? ${ $options{$_} } : $self->quote($options{$_})) } sort keys %options;
	return $self->sql('SELECT outbox.stage(' . $self->quote($topic) . ', ' . $self->quote($payload // '{}') . "::jsonb$arguments)", $database);
}

# Wait until a query gives a result (default t); a test of its own.
sub wait_for
{
	my ($self, $sql, $expected, $name, $database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $done = $self->wait_until($sql, $expected, $database);
	ok($done, $name // "came about: $sql");
	$self->explain_outbox($database) unless $done;
	return $done;
}

# The same without being a test: true when it came about.  It is asked again and
# again in one session, and after an error in another one.
sub wait_until
{
	my ($self, $sql, $expected, $database) = @_;
	$database //= 'postgres';
	$expected //= 't';
	my $end = time + Patience::seconds();
	my $pause = 2_000;
	my $direct = DirectSession::can_ask($self, $sql);
	my ($session, $answer, $error);
	while (1)
	{
		if ($direct)
		{
			$session = DirectSession->new($self, $database) unless $session;
			($answer, $error) = $session ? $session->ask($sql) : (undef, $@);
			undef $session if $error ne '';
		}
		else
		{
			# While nobody can connect, psql may be gone before it has read the
			# statement: a broken pipe for us, and no answer like any other.
			my ($status, $out, $said) = eval { $self->psql($database, $sql) };
			($answer, $error) = ($out, !defined $status ? $@ : $status ? $said || 'failed' : '');
		}
		return 1 if $error eq '' && $answer eq $expected;
		last if time > $end;
		usleep($pause);
		$pause *= 2 if $pause < 20_000;
	}
	Patience::in_vain();
	diag("waited for: $sql\nexpected: $expected\nlast answer: " . ($answer // '') . " $error");
	return 0;
}

# The same under the name that it has in the class above, which minds a broken pipe.
sub poll_query_until
{
	my ($self, $database, $sql, $expected) = @_;
	return $self->wait_until($sql, $expected, $database);
}

# Wait until code returns true.
sub wait_while_not
{
	my ($self, $code, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $end = time + Patience::seconds();
	my $done;
	usleep(20_000) until ($done = $code->()) || time > $end;
	ok($done, $name);
	return $done if $done;
	Patience::in_vain();
	$self->explain_outbox;
	return $done;
}

# Everything outstanding has been settled, in states like "delivered 3".
sub wait_for_states
{
	my ($self, $expected, $name, $database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $self->wait_for(
		"SELECT coalesce(string_agg(state || ' ' || n, ', ' ORDER BY state), 'none') FROM (SELECT state, count(*) AS n FROM outbox.deliveries GROUP BY state) AS s",
		$expected, $name // "deliveries are: $expected", $database);
}

sub dispatcher_pid
{
	my ($self, $database) = @_;
	$database //= 'postgres';
	return $self->sql('SELECT pid FROM outbox.dispatchers WHERE database = ' . $self->quote($database), $database);
}

# Wait until a dispatcher runs there (and is not the one given); its pid.
sub wait_for_dispatcher
{
	my ($self, $database, $not) = @_;
	$database //= 'postgres';
	$not //= 0;
	$self->wait_until(
		"SELECT count(*) = 1 FROM outbox.dispatchers WHERE database = "
		  . $self->quote($database)
		  . " AND state = 'running' AND pid IS NOT NULL AND pid <> $not",
		't', $database);
	return $self->dispatcher_pid($database);
}

# Is there the second processor that a settler needs?
sub can_have_settler
{
	open my $in, '<', '/proc/cpuinfo' or return 0;
	return 1 < grep { /^processor/ } <$in>;
}

# Stage many messages in one transaction; returns how many.
sub stage_load
{
	my ($self, $topic, $n, $database) = @_;
	return $self->sql('SELECT count(outbox.stage(' . $self->quote($topic) . ", jsonb_build_object('n', n))) FROM generate_series(1, $n) AS n", $database);
}

# Nothing is outstanding of a handler.
sub wait_until_done
{
	my ($self, $handler, $or) = @_;
	return $self->wait_until('SELECT ' . ($or // 'false') . ' OR NOT EXISTS (SELECT FROM outbox.delivery WHERE handler_id IN (SELECT id FROM outbox.handler WHERE name = ' . $self->quote($handler) . '))');
}

# Load a handler, of which many may be out at once and which gets NAME.item,
# until there is a settler in database postgres and the code, which is called
# with its pid, returns true; a test of its own.  Returns how many messages that
# took.  A settler that has ended is not followed by another one at once, what
# is staged may be delivered before one comes, and one that was seen may have
# left before the code could do anything to it: then there is more load.
sub load_settler
{
	my ($self, $handler, $name, $code) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $settler = "FROM pg_stat_activity WHERE backend_type = 'outbox settler' AND datname = 'postgres'";
	my $staged = 0;
	$self->wait_while_not(
		sub {
			$staged += $self->stage_load("$handler.item", 4000);
			$self->wait_until_done($handler, "EXISTS (SELECT $settler)");
			my $pid = $self->sql("SELECT pid $settler");
			return $pid && (!$code || $code->($pid));
		},
		$name);
	return $staged;
}

# What one wants to see when a test did not get what it waited for.
sub explain_outbox
{
	my ($self, $database) = @_;
	foreach my $sql (
		'SELECT * FROM outbox.dispatchers',
		'SELECT handler, state, count(*), min(due_at), max(attempts), max(error) FROM outbox.deliveries GROUP BY 1, 2',
		'SELECT finished_at, handler, attempt, outcome, code, error FROM outbox.attempts ORDER BY finished_at DESC LIMIT 10',
		"SELECT pid, backend_type, state, wait_event, query FROM pg_stat_activity WHERE backend_type LIKE '%outbox%'")
	{
		my (undef, $out, $error) = $self->psql($database // 'postgres', $sql);
		diag("$sql\n" . ($out // '') . ($error // ''));
	}
	return;
}

# What there is in the extension's tables, one line for each, and where its
# sequences are: to be compared with a copy's.  Without where an outbox was
# installed, which is another matter, and without the built-in handler, which
# is everybody's own.
sub outbox_contents
{
	my ($self, $database) = @_;
	my $tables = $self->sql(q{SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_class c
		WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'
			-- nor how far each server's retention and events have come
			AND c.relname NOT IN ('installation', 'retention_status', 'prune_position', 'event_queue', 'event_rate')}, $database);
	# Not what a dispatcher writes of its handlers in its own time.
	my $columns = q{to_jsonb(t) - '{home,failing_since,recent_attempts,recent_failures}'::text[]};
	my $text = join "\n", map { "$_: " . $self->sql("SELECT count(*) || ' ' || coalesce(md5(string_agg(($columns)::text, ',' ORDER BY ($columns)::text)), '') FROM outbox.$_ t WHERE $columns ->> 'id' IS DISTINCT FROM '0'", $database) } split / /, $tables;
	my $sequences = $self->sql(q{SELECT string_agg(sequencename || ' ' || coalesce(last_value, 0), ', ' ORDER BY sequencename) FROM pg_sequences WHERE schemaname = 'outbox'}, $database);
	return ($text, $sequences);
}

# Everything the server logged so far, but for what it says to those who knock
# too early, as pg_ctl does while it waits for a slow start, and for autovacuum
# that stood in the way of a shutdown or of DROP DATABASE.
sub log_text
{
	my $self = shift;
	my $log = slurp_file($self->logfile);

	$log =~ s/^.*FATAL:  the database system is (?:starting up|not yet accepting connections|shutting down)\n//mg;
	$log =~ s/^.*FATAL:  terminating autovacuum process due to administrator command\n//mg;
	return $log;
}

1;
