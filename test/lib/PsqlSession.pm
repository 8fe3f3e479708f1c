# A session that stays open beside the test: psql with pipes.
#
#   my $session = PsqlSession->new($node, 'postgres');     # or a connection string
#   $session->start("CALL outbox.wait('h')");     # returns at once
#   ... $session->busy ...                        # still running?
#   my $answer = $session->finish;                # what it printed, errors too
#   my $answer = $session->run('SELECT 1');       # start and finish
#
# answered_at() is when the end of the last answer was read, so a test that
# polls many sessions should use wait_any() or finish() to be prompt.
package PsqlSession;

use strict;
use warnings;

use IO::Select;
use IPC::Open3 qw(open3);
use Patience;
use Time::HiRes qw(time);

my $count = 0;

sub new
{
	my ($class, $node, $database) = @_;
	my ($in, $out);
	local %ENV = ($node->_get_env, PGAPPNAME => 'session');
	my $pid = open3($in, $out, undef, $node->installed_command('psql'), '-XqAt', '-v', 'ON_ERROR_STOP=0',
		'-d', ($database // '') =~ /=/ ? $database : $node->connstr($database // 'postgres'));
	my $self = bless { in => $in, out => $out, pid => $pid, text => '', marker => undef, answered_at => 0 }, $class;
	$in->autoflush(1);
	$self->{backend} = $self->run('SELECT pg_backend_pid()');
	return $self;
}

sub start
{
	my ($self, $sql) = @_;
	die 'session is busy' if defined $self->{marker};
	$self->{marker} = 'answered ' . ++$count;
	$self->{text} = '';
	print { $self->{in} } "$sql;\n\\echo $self->{marker}\n";
	return;
}

# Read what is there, or wait for it; true if the answer is complete.
sub _read
{
	my ($self, $wait) = @_;
	return 1 unless defined $self->{marker};
	return 0 unless IO::Select->new($self->{out})->can_read($wait);
	my $n = sysread $self->{out}, $self->{text}, 65536, length $self->{text};
	if (!$n || $self->{text} =~ s/^\Q$self->{marker}\E\n//m)
	{
		$self->{marker} = undef;
		$self->{answered_at} = time;
		return 1;
	}
	return 0;
}

sub busy { return !$_[0]->_read(0); }

sub finish
{
	my $self = shift;
	my $end = time + Patience::seconds();
	while (!$self->_read(1))
	{
		next if time <= $end;
		Patience::in_vain();
		die "no answer from session $self->{pid}";
	}
	chomp $self->{text};
	return $self->{text};
}

sub run
{
	my ($self, $sql) = @_;
	$self->start($sql);
	return $self->finish;
}

# The server process, and when the last answer had come.
sub backend { return $_[0]{backend}; }
sub answered_at { return $_[0]{answered_at}; }

# Wait until one of several sessions has answered, and return those that have.
sub wait_any
{
	my ($seconds, @sessions) = @_;
	my %by_fd = map { (fileno $_->{out}) => $_ } grep { defined $_->{marker} } @sessions;
	my @ready = IO::Select->new(map { $_->{out} } values %by_fd)->can_read($seconds);
	return grep { $_->_read(0) } map { $by_fd{ fileno $_ } } @ready;
}

sub close
{
	my $self = shift;
	return unless $self->{pid};
	# Not by the end of its input alone: a process that was started since may have that end too.
	local $SIG{PIPE} = 'IGNORE';
	print { $self->{in} } "\\q\n";
	CORE::close $self->{in};
	# The server ends the statement when it notices; psql need not wait for that.
	kill 'KILL', $self->{pid} if defined $self->{marker};
	waitpid $self->{pid}, 0;
	$self->{pid} = 0;
	return;
}

sub DESTROY
{
	my $self = shift;
	local ($?, $!, $@);
	$self->close;
	return;
}

1;
