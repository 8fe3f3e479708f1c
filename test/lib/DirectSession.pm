# A session that needs no process beside the test: PostgreSQL's protocol as far
# as it goes for SQL in text, over the server's unix socket.  Starting psql takes
# longer than most of what tests ask, and they ask all the time.
#
#   my $session = DirectSession->new($node, 'postgres');
#   my ($answer, $error) = $session->ask('SELECT 1, NULL; SELECT 2');
#
# Answers are what "psql -XAtq" prints, and like there each statement is its own
# and the first error ends it.
# What takes a psql (its own commands, COPY from the test) can_ask() refuses.
package DirectSession;

use strict;
use warnings;

use IO::Select;
use IO::Socket::UNIX;
use Patience;
use Time::HiRes qw(time);

my $protocol = 3 << 16;

# What of the environment is said to the server, as libpq does.
my %from_environment = (PGUSER => 'user', PGAPPNAME => 'application_name', PGOPTIONS => 'options', PGCLIENTENCODING => 'client_encoding');

# Undef if nobody can connect; why is in $@.
sub new
{
	my ($class, $node, $database) = @_;
	my $self = bless { in => '' }, $class;
	return eval {
		$self->{socket} = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or die "cannot connect: $!\n";
		my %say = (user => scalar(getpwuid $>), database => $database);
		$say{ $from_environment{$_} } = $ENV{$_} foreach grep { defined $ENV{$_} } keys %from_environment;
		my $text = pack 'N', $protocol;
		$text .= "$_\0$say{$_}\0" foreach sort keys %say;
		$self->_send(pack('N', 5 + length $text) . "$text\0");
		my (undef, $error) = $self->_read_answer;
		die $error if $error ne '';
		$self;
	};
}

# Of what is quoted only its length stays.
sub _without_quoted
{
	my $sql = shift;
	$sql =~ s/(\$\w*\$).*?\1/'q' x length $&/gse;
	$sql =~ s/(['"]).*?\1/'q' x length $&/gse;
	return $sql;
}

# Can it be understood here?
sub can_ask
{
	my ($node, $sql) = @_;
	return 0 if $node->host !~ m{^/} || defined $ENV{PGPASSWORD};
	return _without_quoted($sql) !~ m{\\|--|/\*|['"]|\bcopy\b|\batomic\b}i;
}

sub _statements
{
	my $sql = shift;
	my @statements;
	my $at = 0;
	foreach my $part (split /;/, _without_quoted($sql))
	{
		push @statements, substr $sql, $at, length $part if $part =~ /\S/;
		$at += 1 + length $part;
	}
	return @statements;
}

# What the statements print, and the error or an empty string.
sub ask
{
	my ($self, $sql) = @_;
	utf8::encode($sql) if utf8::is_utf8($sql);
	my $printed = '';
	foreach my $statement (_statements($sql))
	{
		my ($rows, $error) = eval {
			$self->_send('Q' . pack('N', 5 + length $statement) . "$statement\0");
			$self->_read_answer;
		};
		$error = $@ unless defined $error;
		$printed .= $rows // '';
		return ($printed =~ s/\n\z//r, $error) if $error ne '';
	}
	return ($printed =~ s/\n\z//r, '');
}

# Return when the server has done with it as well.
sub close
{
	my $self = shift;
	return unless $self->{socket};
	eval { $self->_send('X' . pack('N', 4)); 1 while $self->_receive; };
	delete $self->{socket};
	return;
}

sub DESTROY
{
	my $self = shift;
	local ($?, $!, $@);
	$self->close;
	return;
}

sub _send
{
	my ($self, $bytes) = @_;
	local $SIG{PIPE} = 'IGNORE';
	while (length $bytes)
	{
		my $n = syswrite $self->{socket}, $bytes;
		$self->_is_gone unless $n;
		substr $bytes, 0, $n, '';
	}
	return;
}

sub _is_gone
{
	my $self = shift;
	delete $self->{socket};
	die "the session is gone\n";
}

# More bytes; 0 at the end.
sub _receive
{
	my $self = shift;
	$self->{socket} or die "the session is gone\n";
	my $socket = IO::Select->new($self->{socket});
	my $end = time + Patience::seconds_of_statement();
	my $answers;
	# A signal, such as that of a child that has ended, is no answer, and no end of patience.
	do { $! = 0; $answers = $socket->can_read($end - time) } while (!$answers && $!{EINTR} && time < $end);
	if (!$answers)
	{
		Patience::in_vain();
		delete $self->{socket};
		die "no answer from the server\n";
	}
	return sysread $self->{socket}, $self->{in}, 65536, length $self->{in};
}

sub _next_message
{
	my $self = shift;
	while (1)
	{
		if (length $self->{in} >= 5)
		{
			my ($type, $length) = unpack 'a1 N', $self->{in};
			if (length $self->{in} > $length)
			{
				my $message = substr $self->{in}, 0, 1 + $length, '';
				return ($type, substr $message, 5);
			}
		}
		next if $self->_receive;
		# It may have said why.
		$self->_is_gone;
	}
	return;
}

# Everything up to "ready": rows as text, and the error or an empty string.
sub _read_answer
{
	my $self = shift;
	my ($rows, $error) = ('', '');
	while (1)
	{
		my ($type, $message) = eval { $self->_next_message };
		return ($rows, $error ne '' ? $error : $@) unless defined $type;
		return ($rows, $error) if $type eq 'Z';
		if ($type eq 'D')
		{
			my @fields = _fields($message);
			$rows .= join('|', map { $_ // '' } @fields) . "\n" if @fields;
		}
		elsif ($type eq 'E')
		{
			$error .= _report($message);
		}
		elsif ($type eq 'N')
		{
			print _report($message);
		}
		elsif ($type eq 'R' && unpack('N', $message) != 0)
		{
			delete $self->{socket};
			return ('', "the server wants to know who it is\n");
		}
	}
	return;
}

sub _fields
{
	my ($n, $rest) = unpack 'n a*', shift;
	my @fields;
	my $at = 0;
	foreach (1 .. $n)
	{
		my $length = unpack 'l>', substr $rest, $at, 4;
		push @fields, $length < 0 ? undef : substr $rest, $at + 4, $length;
		$at += 4 + ($length < 0 ? 0 : $length);
	}
	return @fields;
}

# An error or notice, as psql shows it.
sub _report
{
	my %fields = map { unpack 'a1 a*', $_ } grep { length } split /\0/, shift;
	my $text = "$fields{S}:  $fields{M}\n";
	$text .= "DETAIL:  $fields{D}\n" if defined $fields{D};
	$text .= "HINT:  $fields{H}\n" if defined $fields{H};
	$text .= "CONTEXT:  $fields{W}\n" if defined $fields{W};
	return $text;
}

1;
