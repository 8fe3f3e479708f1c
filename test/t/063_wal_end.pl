# The end of WAL that is waited for before something is sent: behind a page's
# header, which is long on the first page of a segment only, nothing is written yet.
use strict;
use warnings;

use OutboxCluster;
use Test::More;
use UnitModule;

my $node = OutboxCluster->create('main', preload => 0, extension => 0);
UnitModule->build->create_functions($node, 'postgres');

sub end_is
{
	my ($insert, $expected, $name, $segment) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->sql("SELECT unit.wal_before('$insert', " . ($segment // 16 * 1024 * 1024) . ')'), $expected, $name);
	return;
}

end_is('0/1002000', '0/1002000', 'the beginning of a page is the end of the one before');
end_is('0/1002018', '0/1002000', 'behind a header of 24 bytes the page is empty');
end_is('0/1002028', '0/1002028', 'behind 40 bytes there is a record of 16');
end_is('0/1000028', '0/1000000', 'but not on the first page of a segment, whose header is that long');
end_is('0/1000018', '0/1000018', 'in whose midst nothing ends');
end_is('0/1100028', '0/1100000', 'with segments of 1 MB there are more of those', 1024 * 1024);
end_is('0/1002100', '0/1002100', 'anywhere else it is where it is');
$node->stop;
done_testing();
