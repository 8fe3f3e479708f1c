# What t/325_throttling.pl does in small, with 5,000 messages for a receiver
# that takes 20 a second.
use strict;
use warnings;

$ENV{PG_TEST_TIMEOUT_DEFAULT} = 900 unless ($ENV{PG_TEST_TIMEOUT_DEFAULT} // 0) > 900;
@ARGV = (5000, 20);
do './test/t/325_throttling.pl' or die $@ || $!;
