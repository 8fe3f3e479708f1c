# What t/325_throttling.pl does in small, with 5,000 messages for a receiver
# that takes 20 a second.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);

# A program of its own: its modules have INIT blocks, for which it is too late
# in one that has begun to run.
$ENV{PG_TEST_TIMEOUT_DEFAULT} = 900 unless ($ENV{PG_TEST_TIMEOUT_DEFAULT} // 0) > 900;
exec $^X, (map { "-I$_" } grep { !ref } @INC), dirname(abs_path(__FILE__)) . '/../t/325_throttling.pl', 5000, 20 or die "exec: $!";
