# Proves from what a receiver saw that deliveries of a key came in order.
#
# Of each key, one is given the messages in stage order, and what arrived in
# order of arrival.  What arrives next must be
#   the message behind the last one that was ever seen     (the next one),
#   the same message as just before                        (another attempt),
#   or, after a crash, an earlier one, and then those behind it one by one.
# A message that arrives before the one it follows is an inversion, one that
# never arrives a gap.
#
# check_history() knows more and asks for more: when each arrival ended and
# how, when there were crashes, and which messages an operator touched.
package OrderChecker;

use strict;
use warnings;

use Encode qw(decode_utf8);
use Exporter 'import';
use JSON::PP ();
use Test::More;

our @EXPORT = qw(arrivals check_history check_order history staged_order);

# [key, id] of each request that reached a receiver on a path and has a key,
# in order of arrival.
sub arrivals
{
	my ($receiver, $path) = @_;
	my @arrivals;
	foreach my $request ($receiver->requests($path))
	{
		my $key = $request->{headers}{'outbox-key'};
		next unless defined $key;
		$key =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
		push @arrivals, [ decode_utf8($key), $request->{headers}{'webhook-id'} ];
	}
	return @arrivals;
}

# The messages of a handler's keys in stage order: key => [ids].
sub staged_order
{
	my ($node, $handler, $where) = @_;
	my %order;
	my $rows = $node->sql(<<"SQL");
SELECT coalesce(json_agg(json_build_array(key, message_id) ORDER BY message_id), '[]')
FROM outbox.deliveries WHERE handler = '$handler' AND key IS NOT NULL AND @{[ $where // 'true' ]}
SQL
	push @{ $order{ $_->[0] } }, $_->[1] foreach @{ JSON::PP->new->utf8->decode($rows) };
	return \%order;
}

# What is wrong with the arrivals (ids) of one key; empty if nothing is.
# steps counts what happened: next, again, back.
sub find_faults
{
	my ($order, $arrivals, $steps) = @_;
	my @faults;
	my %place = map { $order->[$_] => $_ } 0 .. $#$order;
	my ($last, $furthest) = (-1, -1);
	foreach my $id (@$arrivals)
	{
		my $place = $place{$id};
		if (!defined $place)
		{
			push @faults, "$id was not staged with this key";
			next;
		}
		if ($place > $furthest + 1)
		{
			push @faults, "message $place arrived before message " . ($furthest + 1);
		}
		elsif ($place == $last) { $steps->{again}++; }
		elsif ($place == $last + 1) { $steps->{next}++; }
		elsif ($place < $last) { $steps->{back}++; }
		else { push @faults, "message $place arrived behind message $last"; }
		$last = $place;
		$furthest = $place if $place > $furthest;
	}
	push @faults, 'messages ' . ($furthest + 1) . " to $#$order never arrived" if $furthest < $#$order;
	return @faults;
}

# A test for all keys of a handler.  $order as from staged_order(), $arrivals
# a list of [key, id].  With back => 0 nothing may have gone back to an
# earlier message.  Returns the steps that were counted.
sub check_order
{
	my ($order, $arrivals, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %arrived;
	push @{ $arrived{ $_->[0] } }, $_->[1] foreach @$arrivals;
	my %steps = (next => 0, again => 0, back => 0);
	my @faults;
	foreach my $key (sort keys %{ { %$order, %arrived } })
	{
		push @faults, map { "key $key: $_" } find_faults($order->{$key} || [], $arrived{$key} || [], \%steps);
	}
	push @faults, "$steps{back} times back to an earlier message" if $steps{back} && exists $options{back} && !$options{back};
	ok(!@faults, "$name ($steps{next} in order, $steps{again} again, $steps{back} back)")
	  or diag(join "\n", @faults > 10 ? (@faults[ 0 .. 9 ], '...') : @faults);
	return \%steps;
}

# What check_history() asks for, of the requests that reached a receiver on a
# path and have a key.  Done with are those answered with one of the statuses.
sub history
{
	my ($receiver, $path, @done) = @_;
	my %done = map { $_ => 1 } @done;
	return map {
		my $id = $_->{headers}{'webhook-id'};
		my $key = $_->{headers}{'outbox-key'} =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ger;
		+{ %$_, id => $id, key => decode_utf8($key), done => $done{ $_->{status} // 0 } }
	} grep { defined $_->{headers}{'outbox-key'} } $receiver->requests($path);
}

# Was there a crash that the two times have between them?
sub crashed_between
{
	my ($crashes, $before, $after) = @_;
	return scalar grep { $before <= $_->[1] && $after >= $_->[0] } @$crashes;
}

# What is wrong with the history of one key.
sub find_history_faults
{
	my ($order, $history, $crashes, $touched, $steps) = @_;
	my @faults;
	my @order = grep { !$touched->{$_} } @$order;
	my %place = map { $order[$_] => $_ } 0 .. $#order;
	my %staged = map { $_ => 1 } @$order;
	my ($last, $furthest) = (-1, -1);
	my (%done, $last_time, $open);
	foreach my $event (@$history)
	{
		my ($id, $time) = @$event{qw(id time)};
		push @faults, "$id was not staged with this key" unless $staged{$id};
		push @faults, "$id is tried while $open->{id} is"
		  if $open
		  && (!defined $open->{ended_at} || $open->{ended_at} > $event->{at})
		  && !crashed_between($crashes, $open->{time}, $time);
		$open = $event;
		next unless exists $place{$id};

		my $place = $place{$id};
		my $crashed = defined $last_time && crashed_between($crashes, $last_time, $time);
		if ($place > $furthest + 1) { push @faults, "message $place before message " . ($furthest + 1); }
		elsif ($place == $last + 1)
		{
			push @faults, "message $place while message $last is not done with" if $last >= 0 && !$done{$last};
			$steps->{next}++;
		}
		elsif ($place > $last) { push @faults, "message $place behind message $last"; }
		elsif ($crashed) { $steps->{back}++; }
		elsif ($place < $last) { push @faults, "back from message $last to message $place"; }
		elsif ($done{$place}) { push @faults, "message $place again, which was done with"; }
		else { $steps->{again}++; }
		$done{$place} = $event->{done};
		$last = $place;
		$last_time = $time;
		$furthest = $place if $place > $furthest;
	}
	push @faults, 'messages ' . ($furthest + 1) . " to $#order never came" if $furthest < $#order;
	push @faults, "message $_ was never done with" foreach grep { !$done{$_} } 0 .. $furthest;
	return @faults;
}

# A test for all keys of a handler.  $order as from staged_order(), $history
# a list of attempts in the order in which they began, each a hash of key, id,
# time, at (its place among all events), ended_at (the place of its end) and
# done (it leaves nothing to be tried: those behind it may go).
#   crashes   a list of [from, until]: what was tried or done with just before
#             may be tried again, from some message on and in order
#   touched   ids of messages that an operator cancelled or brought back: of
#             these only that none is tried beside another one of its key
sub check_history
{
	my ($order, $history, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my (%by_key, @faults);
	my %steps = (next => 0, again => 0, back => 0);
	push @{ $by_key{ $_->{key} } }, $_ foreach @$history;
	foreach my $key (sort keys %{ { %$order, %by_key } })
	{
		push @faults, map { "key $key: $_" }
		  find_history_faults($order->{$key} || [], $by_key{$key} || [], $options{crashes} || [], $options{touched} || {}, \%steps);
	}
	ok(!@faults, "$name ($steps{next} in order, $steps{again} again, $steps{back} after a crash)")
	  or diag(join "\n", @faults > 20 ? (@faults[ 0 .. 19 ], '...') : @faults);
	return \%steps;
}

1;
