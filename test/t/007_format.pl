# What pgindent, perltidy and a tidy editor would leave: rules that a program
# can hold the tree to without either.  Needs no server.
use strict;
use warnings;

use Cwd qw(realpath);
use File::Basename qw(dirname);
use File::Find qw(find);
use Test::More;

my $root = realpath(dirname(__FILE__) . '/../..');
my @files;

# What a build, a test run or git has left here is not the tree's.
find({ no_chdir => 1, wanted => sub {
	if (-d $_ && m{/(?:\.git|tmp_check|node_modules|log|\.deps)$}) { $File::Find::prune = 1; return; }
	return if !-f $_ || -l $_ || m{\.(?:o|so|bc|png|out)$} || m{/expected/} || m{^\Q$root\E/sql/outbox--};
	push @files, s{^\Q$root/\E}{}r if m{\.(?:[ch]|pl|pm|sql|md|sh|yml|json|txt|control|py|js|mjs|ts)$} || m{/(?:Makefile|\.ci/run|test/(?:run|versions|sanitize|package|fresh)|test/bench/run)$};
} }, $root);
cmp_ok(scalar @files, '>', 300, 'files of the tree are looked at') or diag(join "\n", @files);

# A rule: which files, what a line of theirs must not match, and in words.
my @rules = (
	[ qr{\.}, qr{\r}, 'no carriage returns' ],
	[ qr{(?<!\.md)$}, qr{[ \t]+$}, 'nothing blank at the end of a line' ],
	[ qr{\.[ch]$}, qr{^ +[^ *]}, 'indented by tabs' ],
	[ qr{\.[ch]$}, qr{^\s*(?:if|for|while|switch)\b.*\{$}, 'an opening brace has a line of its own' ],
	[ qr{\.[ch]$}, qr{\}\s*else\b|\belse\s*\{}, 'else stands alone' ],
	[ qr{\.[ch]$}, qr{\b(?:if|for|while|switch)\(}, 'a blank before the parenthesis of a statement' ],
	[ qr{\.[ch]$}, qr{^(?!#).*[^:"'/]//(?![^"]*"[^"]*$)(?!.*\bhttp)}, 'comments are /* so */' ],
	[ qr{^(?:sql|src)/.*\.sql$|\.sh$|run$}, qr{^ +\S}, 'scripts are indented by tabs' ]);

foreach my $rule (@rules)
{
	my ($which, $never, $words) = @$rule;
	my @found;
	foreach my $file (grep { $_ =~ $which } @files)
	{
		open my $in, '<', "$root/$file" or die "$file: $!";
		my $text;
		while (my $line = <$in>)
		{
			chomp $line;
			# What a here-document or a string holds is another language's.
			if (defined $text) { undef $text if $line =~ /^\s*\Q$text\E;?$/; next; }
			$text = $1 if $line =~ /<<[-~]?\\?["']?([A-Z_]+)["']?/ && $file !~ /\.[ch]$|\.sql$/;
			$line =~ s/"(?:[^"\\]|\\.)*"/""/g if $file =~ /\.[ch]$/;
			push @found, "$file:$.: $line" if $line =~ $never;
		}
	}
	is(scalar @found, 0, "$words (" . $which . ')') or diag(join "\n", @found[0 .. ($#found < 9 ? $#found : 9)]);
}

my @unended = grep { open my $in, '<', "$root/$_" or die; local $/; my $all = <$in>; $all ne '' && $all !~ /[^\n]\n\z/ } @files;
is("@unended", '', 'every file ends with one newline');

done_testing();
