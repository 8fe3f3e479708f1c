# An HTTP/1.1 receiver for tests: one child process with a select loop, on a
# free port of 127.0.0.1 (or another address, or a unix socket), that does what
# the test scripts it to do and logs every request it read in full.
#
#   my $receiver = HttpReceiver->start;
#   $receiver->on('/orders', { status => 500, body => 'no' });
#   ... $receiver->url('/orders') ...
#   my @requests = $receiver->requests('/orders');
#
# An answer is a hash; what it leaves out is status 200 with an empty body:
#   status, headers (hash), body
#   delay     seconds before the answer
#   hang      never answers, until release()
#   close     closes the connection instead of answering
#   reset     the same, with a TCP reset
#   raw       these bytes instead of an answer; then closes unless keep is set,
#             with a TCP reset if ends is 'reset'
#   pieces    a list of bytes, each sent every so many seconds; the last one
#             again and again with forever, else nothing comes after it
#   size      a body of so many bytes, written as the peer takes them
#   last      answers, then closes the connection
#
# on() may be given several answers: one each for the requests that follow,
# the last one for all further ones.  With per_message => [...] the list is
# counted for each webhook-id by itself.
#
# With per_second => N so many are answered in a second, N at once after a
# rest, and others as refused says (status 429).
#
# Control goes over a socket pair and is acknowledged, so an answer is in
# force when on() returns.  The child ends when the test does.
package HttpReceiver;

use strict;
use warnings;

use Errno qw(EAGAIN EWOULDBLOCK EINTR);
use File::Temp qw(tempfile);
use IO::Handle;
use IO::Socket::IP;
use IO::Socket::UNIX;
use Patience;
use POSIX qw(:sys_wait_h);
use Socket qw(AF_UNIX SOCK_STREAM PF_UNSPEC SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY SOMAXCONN);
use Storable ();
use Time::HiRes qw(time sleep);

my @running;

# options: port (a free one is chosen otherwise), address (such as ::1), unix
# (the path of a socket to listen on instead).  TLS is not spoken here.
sub start
{
	my ($class, %options) = @_;

	my $listener = _listen($options{port} || 0, $options{address}, $options{unix});
	socketpair(my $ours, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "socketpair: $!";
	my ($log, $log_name) = tempfile('receiver_XXXXXX', TMPDIR => 1, UNLINK => 0);

	my $pid = fork;
	die "fork: $!" unless defined $pid;
	if (!$pid)
	{
		close $ours;
		$SIG{$_} = 'DEFAULT' foreach qw(INT TERM CHLD ALRM);
		$SIG{PIPE} = 'IGNORE';
		my $child = bless {
			listener => $listener,
			control => $theirs,
			log => $log,
			port => $options{unix} ? 0 : $listener->sockport,
			address => $options{address},
			unix => $options{unix},
			connections => {},
			accepted => 0,
			rules => {},
			seen => {},
			paths => {}
		}, 'HttpReceiver::Child';
		eval { $child->run; 1 } or print STDERR "receiver: $@";
		POSIX::_exit(0);
	}
	close $theirs;
	my $self = bless {
		pid => $pid,
		owner => $$,
		control => $ours,
		port => $options{unix} ? 0 : $listener->sockport,
		address => $options{address} // '127.0.0.1',
		log_name => $log_name,
		log => undef,
		records => [],
		open => {},
		lines => 0,
		rest => ''
	}, $class;
	close $listener;
	close $log;
	open $self->{log}, '<:raw', $log_name or die "$log_name: $!";
	push @running, $self;
	return $self;
}

sub _listen
{
	my ($port, $address, $path) = @_;
	$address //= '127.0.0.1';
	unlink $path if defined $path;
	my $listener =
	  defined $path
	  ? IO::Socket::UNIX->new(Local => $path, Listen => SOMAXCONN)
	  : IO::Socket::IP->new(
		LocalHost => $address,
		LocalPort => $port,
		Proto => 'tcp',
		Listen => SOMAXCONN,
		V6Only => 1,
		ReuseAddr => 1);
	die 'cannot listen on ' . ($path // "$address:$port") . ": $!" unless $listener;
	$listener->blocking(0);
	return $listener;
}

sub port { return $_[0]{port}; }

sub url
{
	my ($self, $path) = @_;
	my $host = $self->{address} =~ /:/ ? "[$self->{address}]" : $self->{address};
	return "http://$host" . ($self->{port} ? ":$self->{port}" : '') . ($path // '/');
}

# Answer requests whose path starts with $path; the longest such path wins.
sub on
{
	my ($self, $path, @answers) = @_;
	return $self->_ask({ do => 'on', path => $path, answers => \@answers });
}

# Answer all requests that hang on paths that start with $path, and forget
# that rule, so that later ones are not held; they get what is named last, as
# with on().
sub release
{
	my ($self, $path, $answer, @answers) = @_;
	return $self->_ask({ do => 'release', path => $path, answer => $answer || {}, answers => \@answers })->{released};
}

# Refuse connections, and close the ones that are open; then listen again.
sub go_away { return $_[0]->_ask({ do => 'go_away' }); }
sub come_back { return $_[0]->_ask({ do => 'come_back' }); }

# Close every connection on which no request is being answered.
sub close_idle { return $_[0]->_ask({ do => 'close_idle' })->{closed}; }

# Requests that were read but not answered yet; the highest number of those
# there ever was on a path; connections open now and accepted so far.
sub stats { return $_[0]->_ask({ do => 'stats' }); }

sub in_flight
{
	my ($self, $path) = @_;
	return $self->stats->{paths}{ $path // '/' }{open} || 0;
}

sub most_in_flight
{
	my ($self, $path) = @_;
	return $self->stats->{paths}{ $path // '/' }{most} || 0;
}

# The highest number of requests of one outbox-key there ever was at a time.
sub most_of_a_key
{
	my ($self, $path) = @_;
	return $self->stats->{paths}{ $path // '/' }{most_of_a_key} || 0;
}

# Every request so far, or those of one exact path, as hashes of time
# (arrival, seconds), method, path, headers (hash, lower case), body,
# connection (a number), at (its place among all that was logged), and once it
# is over ended (when), ended_at (the place of that) and status (what was
# answered; 0: nothing, or bytes as they stood).
sub requests
{
	my ($self, $path) = @_;
	$self->_read_log;
	return grep { !defined $path || $_->{path} eq $path } @{ $self->{records} };
}

# How often each message id arrived at a path.
sub ids
{
	my ($self, $path) = @_;
	my %ids;
	$ids{ $_->{headers}{'webhook-id'} // '' }++ foreach $self->requests($path);
	return \%ids;
}

sub count
{
	my ($self, $path) = @_;
	return scalar(my @requests = $self->requests($path));
}

# Wait until at least that many requests have arrived.  False after timeout.
sub wait_for_requests
{
	my ($self, $number, $path, $timeout) = @_;
	my $end = time + ($timeout || Patience::seconds());
	while ($self->count($path) < $number)
	{
		if (time > $end)
		{
			Patience::in_vain();
			return 0;
		}
		sleep 0.01;
	}
	return 1;
}

# Forget the requests read so far.
sub forget
{
	my $self = shift;
	$self->_read_log;
	$self->{records} = [];
	return;
}

sub stop
{
	my $self = shift;
	return unless $self->{pid} && $self->{owner} == $$;
	close $self->{control};
	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	unlink $self->{log_name};
	$self->{pid} = 0;
	return;
}

sub DESTROY
{
	my $self = shift;
	local ($?, $!, $@);
	$self->stop;
	return;
}

END
{
	my $status = $?;
	$_ && $_->stop foreach @running;
	$? = $status;
}

sub _ask
{
	my ($self, $question) = @_;
	my $bytes = _pack($question);
	my $at = 0;
	while ($at < length $bytes)
	{
		my $n = syswrite $self->{control}, $bytes, length($bytes) - $at, $at;
		die "receiver is gone: $!" unless defined $n;
		$at += $n;
	}
	my ($said, $answer) = ('');
	until ($answer = _unpack($said))
	{
		my $n = sysread $self->{control}, $said, 65536, length $said;
		next if !defined $n && $! == EINTR;
		die 'receiver is gone' unless $n;
	}
	die "receiver: $answer->{error}" if $answer->{error};
	return $answer;
}

# Questions and answers as bytes behind their length.  (Some answers to requests
# are of megabytes, which JSON in Perl takes seconds to read.)
sub _pack { return pack 'N/a*', Storable::nfreeze($_[0]); }

# Takes one from what was read, if it is there whole.
sub _unpack
{
	return if length $_[0] < 4 || length $_[0] < 4 + unpack 'N', $_[0];
	my $bytes = unpack 'N/a*', $_[0];
	substr $_[0], 0, 4 + length $bytes, '';
	return Storable::thaw($bytes);
}

# The log has one line a request: fields separated by tabs, bytes that would
# be in the way written as \xHH.  When the request is over there is another
# one, with = for its method and the status for its path.
sub _read_log
{
	my $self = shift;
	while (1)
	{
		my $n = sysread $self->{log}, $self->{rest}, 1 << 20, length $self->{rest};
		last unless $n;
	}
	my $end = rindex $self->{rest}, "\n";
	return if $end < 0;
	foreach my $line (split /\n/, substr($self->{rest}, 0, $end + 1, ''))
	{
		my ($time, $connection, $method, $path, $headers, $body) = split /\t/, $line, -1;
		$self->{lines}++;
		if ($method eq '=')
		{
			my $record = delete $self->{open}{$connection} or next;
			@$record{qw(ended ended_at status)} = ($time, $self->{lines}, $path);
			next;
		}
		my %headers = map { my ($name, $value) = split /: /, _unescape($_), 2; (lc $name, $value) } split /\\n/, $headers;
		push @{ $self->{records} }, $self->{open}{$connection} =
		  {
			at => $self->{lines},
			time => $time,
			connection => $connection,
			method => $method,
			path => _unescape($path),
			headers => \%headers,
			body => _unescape($body)
		  };
	}
	return;
}

sub _unescape
{
	my $text = shift;
	$text =~ s/\\x([0-9a-f]{2})/chr hex $1/ge;
	return $text;
}

#
# The child: everything below runs in the receiver's own process.
#
package HttpReceiver::Child;

use strict;
use warnings;

use Errno qw(EAGAIN EWOULDBLOCK EINTR);
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

sub run
{
	my $self = shift;
	my $control_fd = fileno $self->{control};
	$self->{control}->blocking(0);

	while (1)
	{
		my ($read, $write) = ('', '');
		vec($read, $control_fd, 1) = 1;
		vec($read, fileno $self->{listener}, 1) = 1 if $self->{listener};
		my $timeout;
		my $now = time;
		foreach my $c (values %{ $self->{connections} })
		{
			vec($read, $c->{fd}, 1) = 1;
			vec($write, $c->{fd}, 1) = 1 if length $c->{out} || $c->{more};
			next unless defined $c->{due};
			my $left = $c->{due} - $now;
			$left = 0 if $left < 0;
			$timeout = $left if !defined $timeout || $left < $timeout;
		}
		my $n = select $read, $write, undef, $timeout;
		next if $n < 0;

		return if vec($read, $control_fd, 1) && !$self->read_control;
		$self->accept_all if $self->{listener} && vec($read, fileno $self->{listener}, 1);
		$now = time;
		foreach my $c (values %{ $self->{connections} })
		{
			$self->answer_now($c) if defined $c->{due} && $c->{due} <= $now;
			next if $c->{closed};
			$self->write_some($c) if vec($write, $c->{fd}, 1);
			next if $c->{closed};
			$self->read_some($c) if vec($read, $c->{fd}, 1);
		}
	}
}

sub accept_all
{
	my $self = shift;
	while (my $socket = $self->{listener}->accept)
	{
		$socket->blocking(0);
		setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1 unless $self->{unix};
		my $fd = fileno $socket;
		$self->{connections}{$fd} =
		  { socket => $socket, fd => $fd, number => ++$self->{accepted}, in => '', out => '', more => 0 };
	}
	return;
}

sub drop
{
	my ($self, $c, $reset) = @_;
	return if $c->{closed};
	$c->{closed} = 1;
	$self->finish($c) if $c->{path};
	setsockopt $c->{socket}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0) if $reset;
	delete $self->{connections}{ $c->{fd} };
	close $c->{socket};
	return;
}

# Noted before the answer can be read, so that whoever has it finds the note.
sub log_end
{
	my ($self, $c, $status) = @_;
	syswrite $self->{log}, sprintf "%.6f\t%d\t=\t%d\n", time, $c->{number}, $status;
	$c->{logged} = 1;
	return;
}

# The request on this connection is over.
sub finish
{
	my ($self, $c) = @_;
	$self->log_end($c, 0) unless $c->{logged};
	$self->{paths}{ $c->{path} }{open}--;
	$self->{of_key}{ $c->{of_key} }-- if defined $c->{of_key};
	delete @$c{qw(path answer due of_key piece logged)};
	return;
}

sub read_some
{
	my ($self, $c) = @_;
	my $n = sysread $c->{socket}, $c->{in}, 65536, length $c->{in};
	if (!defined $n)
	{
		return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
		return $self->drop($c);
	}
	return $self->drop($c) if $n == 0;
	$self->take_request($c);
	return;
}

# One request at a time: what is pipelined behind it waits in the buffer.
sub take_request
{
	my ($self, $c) = @_;
	return if $c->{path} || length $c->{out} || $c->{more};

	# Like most servers, tell whoever speaks TLS that this is the wrong port.
	if ($c->{in} =~ /^\x16\x03/)
	{
		$c->{out} = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
		$c->{last} = 'close';
		return $self->write_some($c);
	}

	my $end = index $c->{in}, "\r\n\r\n";
	return if $end < 0;
	my ($first, @lines) = split /\r\n/, substr($c->{in}, 0, $end);
	my ($method, $path) = ($first // '') =~ m{^(\S+) (\S+) HTTP/1\.[01]$} or return $self->drop($c);
	my $length = 0;
	my $chunked = 0;
	my ($id, $key) = ('', undef);
	foreach my $line (@lines)
	{
		if ($line =~ /^content-length: *(\d+)/i) { $length = $1; }
		elsif ($line =~ /^transfer-encoding: *chunked/i) { $chunked = 1; }
		elsif ($line =~ /^webhook-id: *(\S+)/i) { $id = $1; }
		elsif ($line =~ /^outbox-key: *(\S+)/i) { $key = "$path $1"; }
	}
	my $body;
	if ($chunked)
	{
		my $at = $end + 4;
		$body = '';
		while (1)
		{
			my $eol = index $c->{in}, "\r\n", $at;
			return if $eol < 0;
			my $size = hex substr $c->{in}, $at, $eol - $at;
			return if length($c->{in}) < $eol + 4 + $size;
			$body .= substr $c->{in}, $eol + 2, $size;
			$at = $eol + 4 + $size;
			last if $size == 0;
		}
		substr($c->{in}, 0, $at, '');
	}
	else
	{
		return if length($c->{in}) < $end + 4 + $length;
		$body = substr $c->{in}, $end + 4, $length;
		substr($c->{in}, 0, $end + 4 + $length, '');
	}

	my $record = join "\t", sprintf('%.6f', time), $c->{number}, $method, map { escape($_) } $path;
	$record .= "\t" . join('\n', map { escape($_) } @lines) . "\t" . escape($body) . "\n";
	syswrite $self->{log}, $record;

	my $at = $self->{paths}{$path} ||= { open => 0, most => 0, total => 0 };
	$at->{open}++;
	$at->{total}++;
	$at->{most} = $at->{open} if $at->{open} > $at->{most};
	if (defined $key)
	{
		my $open = ++$self->{of_key}{$key};
		$at->{most_of_a_key} = $open if $open > ($at->{most_of_a_key} || 0);
	}
	$c->{path} = $path;
	$c->{of_key} = $key;

	my $answer = $c->{answer} = $self->choose($path, $id);
	return if $answer->{hang};
	if ($answer->{delay})
	{
		$c->{due} = time + $answer->{delay};
		return;
	}
	$self->answer_now($c);
	return;
}

sub escape
{
	my $text = shift;
	$text =~ s/([\\\t\r\n\0-\x1f\x7f-\xff])/sprintf '\\x%02x', ord $1/ge;
	return $text;
}

sub choose
{
	my ($self, $path, $id) = @_;
	my $rule;
	foreach my $prefix (sort { length $b <=> length $a } keys %{ $self->{rules} })
	{
		next unless index($path, $prefix) == 0;
		$rule = $self->{rules}{$prefix};
		last;
	}
	return {} unless $rule;
	my $answers = $rule->{answers};
	return $answers->[0]{refused} || { status => 429 } if !$self->within_limit($rule);
	my $turn = $rule->{turn}++;
	if (@$answers == 1 && $answers->[0]{per_message})
	{
		$answers = $answers->[0]{per_message};
		$turn = $rule->{seen}{$id}++ || 0;
	}
	return $answers->[ $turn < @$answers ? $turn : -1 ];
}

# A bucket of tokens, where there is a limit.
sub within_limit
{
	my ($self, $rule) = @_;
	my $rate = $rule->{answers}[0]{per_second} or return 1;
	my $now = time;
	my $tokens = ($rule->{tokens} // $rate) + ($now - ($rule->{filled} // $now)) * $rate;
	$rule->{filled} = $now;
	$rule->{tokens} = $tokens > $rate ? $rate : $tokens;
	return 0 if $rule->{tokens} < 1;
	$rule->{tokens}--;
	return 1;
}

sub answer_now
{
	my ($self, $c) = @_;
	my $answer = $c->{answer};
	delete $c->{due};
	return $self->drop($c, $answer->{reset}) if $answer->{close} || $answer->{reset};
	if ($answer->{pieces})
	{
		# What is due next is said when this one has been written.
		my $piece = $c->{piece}++ || 0;
		$piece = $#{ $answer->{pieces} } if $answer->{forever} && $piece >= @{ $answer->{pieces} };
		return if $piece >= @{ $answer->{pieces} };
		$c->{out} = $answer->{pieces}[$piece];
		utf8::downgrade($c->{out});
	}
	elsif (defined $answer->{raw})
	{
		$c->{out} = $answer->{raw};
		utf8::encode($c->{out}) if utf8::is_utf8($c->{out}) && $c->{out} =~ /[^\x00-\xff]/;
		utf8::downgrade($c->{out}, 1);
		$c->{last} = $answer->{keep} ? 0 : $answer->{ends} || 'close';
	}
	else
	{
		my $body = $answer->{body} // '';
		utf8::encode($body) if $body =~ /[^\x00-\xff]/;
		utf8::downgrade($body, 1);
		my $status = $answer->{status} || 200;
		$self->log_end($c, $status);
		my $length = $answer->{size} || length $body;
		my $out = "HTTP/1.1 $status Scripted\r\n";
		$out .= "Content-Length: $length\r\n" unless $status == 204 || $status == 304;
		$out .= "Connection: close\r\n" if $answer->{last};
		$out .= "$_: $answer->{headers}{$_}\r\n" foreach sort keys %{ $answer->{headers} || {} };
		$c->{out} = "$out\r\n$body";
		$c->{more} = $answer->{size} || 0;
		$c->{last} = $answer->{last};
	}
	$self->write_some($c);
	return;
}

sub write_some
{
	my ($self, $c) = @_;
	while (length $c->{out} || $c->{more})
	{
		if (!length $c->{out})
		{
			my $piece = $c->{more} < 65536 ? $c->{more} : 65536;
			$c->{out} = 'x' x $piece;
			$c->{more} -= $piece;
		}
		my $n = syswrite $c->{socket}, $c->{out};
		if (!defined $n)
		{
			return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
			return $self->drop($c);
		}
		substr($c->{out}, 0, $n, '');
	}
	return $self->drop($c, $c->{last} eq 'reset') if $c->{last};
	if ($c->{answer} && $c->{answer}{pieces})
	{
		$c->{due} = time + $c->{answer}{every};
		return;
	}
	$self->finish($c) if $c->{path};
	$self->take_request($c) if length $c->{in};
	return;
}

sub read_control
{
	my $self = shift;
	my $n = sysread $self->{control}, $self->{asked}, 65536, length($self->{asked} // '');
	return 1 if !defined $n && ($! == EAGAIN || $! == EINTR);
	return 0 unless $n;
	while (my $question = HttpReceiver::_unpack($self->{asked}))
	{
		my $do = HttpReceiver::Child->can("do_$question->{do}");
		my $answer = $do ? $do->($self, $question) : { error => "cannot $question->{do}" };
		$self->{control}->blocking(1);
		syswrite $self->{control}, HttpReceiver::_pack($answer);
		$self->{control}->blocking(0);
	}
	return 1;
}

sub do_on
{
	my ($self, $q) = @_;
	if (@{ $q->{answers} })
	{
		$self->{rules}{ $q->{path} } = { answers => $q->{answers}, turn => 0, seen => {} };
	}
	else
	{
		delete $self->{rules}{ $q->{path} };
	}
	return { ok => 1 };
}

sub do_release
{
	my ($self, $q) = @_;
	my $released = 0;
	$self->do_on($q);
	foreach my $c (values %{ $self->{connections} })
	{
		next unless $c->{path} && index($c->{path}, $q->{path}) == 0 && $c->{answer}{hang};
		$c->{answer} = $q->{answer};
		$released++;
		$self->answer_now($c);
	}
	return { released => $released };
}

sub do_go_away
{
	my $self = shift;
	close $self->{listener} if $self->{listener};
	delete $self->{listener};
	$self->drop($_, 1) foreach values %{ $self->{connections} };
	return { ok => 1 };
}

sub do_come_back
{
	my $self = shift;
	$self->{listener} ||= HttpReceiver::_listen(@$self{qw(port address unix)});
	return { ok => 1 };
}

sub do_close_idle
{
	my $self = shift;
	my $closed = 0;
	foreach my $c (values %{ $self->{connections} })
	{
		next if $c->{path} || length $c->{in};
		$self->drop($c);
		$closed++;
	}
	return { closed => $closed };
}

sub do_stats
{
	my $self = shift;
	return {
		paths => $self->{paths},
		connections => scalar(keys %{ $self->{connections} }),
		accepted => $self->{accepted}
	};
}

1;
