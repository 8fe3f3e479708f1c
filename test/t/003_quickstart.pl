# The quick start's tour runs as it is told, and leaves nothing running.
use strict;
use warnings;

use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Test::More;

my $root = dirname(__FILE__) . '/../..';
my $folder = PostgreSQL::Test::Utils::tempdir_short() . '/tour';
my $told = qx(perl "$root/test/demo/tour.pl" "$folder" 2>&1);
is($? >> 8, 0, 'the tour ends well') or diag($told);
like($told, qr/^    POST \/hooks\/billing$/m, 'it shows the request');
like($told, qr/accounting \| billing\.invoice\.paid \| delivered \|        1/, 'the receipt');
like($told, qr/accounting \| billing\.invoice\.sent \| 500  \| the books are closed \|        2/, 'the dead letter');
like($told, qr/billing\.invoice\.sent \| delivered \|        3/, 'and its delivery after the requeue');
is(() = $told =~ /outbox-attempt: 3/g, 1, 'which is the third attempt');
ok(!-e "$folder/data/postmaster.pid", 'the server is stopped');

done_testing();
