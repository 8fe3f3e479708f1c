# How long a test waits for something that ought to come about.
#
# It is the time that PostgreSQL's own tests take, PG_TEST_TIMEOUT_DEFAULT:
# so long that only what never comes is missed, on a slow machine as well.
# A run in which some waits were in vain is one that has failed, and is to end:
# what it waits for from then on it waits for a shorter time.  All files of a
# run count together, in a file beside their logs.
package Patience;

use strict;
use warnings;

# So often in vain, and then so many parts of the time at most.
my @less = ([ 8, 24 ], [ 3, 3 ]);
my $shortest = 5;

my $count = defined $ENV{TESTLOGDIR} ? "$ENV{TESTLOGDIR}/waited_in_vain" : undef;

sub seconds
{
	my $full = $PostgreSQL::Test::Utils::timeout_default || $ENV{PG_TEST_TIMEOUT_DEFAULT} || 120;
	my $in_vain = $count && -s $count || 0;
	foreach my $step (@less)
	{
		my ($times, $parts) = @$step;
		next if $in_vain < $times;
		return $full / $parts > $shortest ? $full / $parts : $shortest;
	}
	return $full;
}

# How long a statement may take: in test/t as long as anything, in test/long and
# test/bench, where one fills tables with millions of rows, an hour.
sub seconds_of_statement
{
	return $0 =~ m{\btest/(?:long|bench)/} ? 3600 : seconds();
}

# Something has not come about.
sub in_vain
{
	open my $out, '>>', $count or return if $count;
	print $out '.' if $count;
	return;
}

1;
