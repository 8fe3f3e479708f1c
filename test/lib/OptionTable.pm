# Tables of options in the documentation, as they stand in a page:
#
#   my %default = OptionTable::read_table('doc/handlers.md', 'option');
#
# gives the default of each option that the table names, '' for none.  A row may
# name several, with their defaults in the same order.
package OptionTable;

use strict;
use warnings;

sub slurp
{
	my $name = shift;
	open my $in, '<:encoding(UTF-8)', $name or die "$name: $!";
	local $/;
	return scalar <$in>;
}

sub read_table
{
	my ($file, $heading) = @_;
	my ($table) = slurp($file) =~ /^\| \Q$heading\E \| default \| meaning \|\n(.*?)\n\n/ms or die "$file: no table of $heading";
	my %default;
	foreach my $line (split /\n/, $table)
	{
		my ($names, $defaults) = map { s/^\s+|\s+$//gr } (split /\|/, $line)[ 1, 2 ];
		my @names = $names =~ /`(\w+)`/g;
		my @defaults = map { s/`//gr } split /,\s*/, $defaults;
		foreach my $i (0 .. $#names)
		{
			my $default = $defaults[$i] // '';
			$default{ $names[$i] } = $default eq 'none' ? '' : $default;
		}
	}
	return %default;
}

1;
