# The code that doc/recipes and its like show, as files to run: what a test
# tries is what the page says.  A fenced block whose first line is a comment
# with a file's name becomes that file; blocks of SQL without one are what the
# page has done first.
#
#   my $page = Recipes->read('doc/recipes/python.md');
#   $node->sql($_) foreach $page->sql;
#   $page->write($folder);
package Recipes;

use strict;
use warnings;

use File::Basename qw(dirname);
use File::Path qw(make_path);
use PostgreSQL::Test::Utils qw(slurp_file);

my $root = dirname(__FILE__) . '/../..';

sub read
{
	my ($class, $page) = @_;
	my $text = slurp_file("$root/$page");
	my $self = bless { page => $page, files => {}, sql => [], unnamed => [] }, $class;
	while ($text =~ /^```(\w*)\n(?:(?:\/\/|#|--|;) ([\w.\/-]+\.\w+)\n)?(.*?)^```$/msg)
	{
		my ($language, $name, $block) = ($1, $2, $3);
		if (defined $name)
		{
			die "$page shows $name twice\n" if exists $self->{files}{$name};
			$self->{files}{$name} = $block;
		}
		elsif ($language eq 'sql')
		{
			push @{ $self->{sql} }, $block;
		}
		else
		{
			push @{ $self->{unnamed} }, "$language: " . substr($block, 0, 60);
		}
	}
	return $self;
}

sub sql { return @{ $_[0]{sql} }; }
sub files { return sort keys %{ $_[0]{files} }; }

# Blocks that nothing can be done with, as their language and first words.
sub unnamed { return @{ $_[0]{unnamed} }; }

sub text
{
	my ($self, $name) = @_;
	return $self->{files}{$name} // die "$self->{page} shows no $name\n";
}

# Write all of them into a folder.
sub write
{
	my ($self, $folder) = @_;
	foreach my $name ($self->files)
	{
		make_path(dirname("$folder/$name"));
		open my $out, '>', "$folder/$name" or die "$folder/$name: $!";
		print $out $self->{files}{$name};
		close $out or die "$folder/$name: $!";
	}
	return;
}

1;
