# doc/reference.md, written from the catalogs: the signature of every function
# and view that is for users, and what their comments say.  test/reference
# writes the page, t/008_reference.pl holds it to the catalogs.
#
#   my $page = SqlReference::page(sub { $node->sql($_[0]) });
package SqlReference;

use strict;
use warnings;

use JSON::PP qw(decode_json);

my %short_name = ('timestamp with time zone' => 'timestamptz', 'double precision' => 'float8', 'integer' => 'int');

my $functions = <<'SQL';
SELECT coalesce(json_agg(f ORDER BY f.name), '[]') FROM (
	SELECT p.proname AS name, p.prokind AS kind, p.proretset AS many, format_type(p.prorettype, NULL) AS result, obj_description(p.oid, 'pg_proc') AS comment,
		(SELECT json_agg(json_build_object('name', p.proargnames[a.n], 'type', format_type(a.type, NULL), 'mode', coalesce(p.proargmodes[a.n], 'i'),
				'default', pg_get_function_arg_default(p.oid, a.n::int)) ORDER BY a.n)
			FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY a (type, n)) AS arguments,
		(SELECT json_agg(t.part ORDER BY t.n) FROM unnest('{producer,consumer,operator,monitor}'::text[]) WITH ORDINALITY t (part, n)
			WHERE p.oid::regprocedure::text = ANY (SELECT unnest(regexp_split_to_array(r.routines, ', (?=outbox)')) FROM outbox_internal.part(t.part) r)) AS parts
	FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace) f
SQL

my $relations = <<'SQL';
SELECT coalesce(json_agg(r ORDER BY r.name), '[]') FROM (
	SELECT c.relname AS name, c.relkind AS kind, coalesce(obj_description(c.oid, 'pg_class'), obj_description(c.reltype, 'pg_type')) AS comment,
		(SELECT json_agg(json_build_object('name', a.attname, 'type', format_type(a.atttypid, NULL), 'comment', col_description(c.oid, a.attnum)) ORDER BY a.attnum)
			FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
		(SELECT json_agg(t.part ORDER BY t.n) FROM unnest('{producer,consumer,operator,monitor}'::text[]) WITH ORDINALITY t (part, n)
			WHERE 'outbox.' || c.relname = ANY (SELECT unnest(string_to_array(r.views, ', ')) FROM outbox_internal.part(t.part) r)) AS parts
	FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('v', 'c')) r
SQL

my $head = <<'END';
# SQL reference

Every function, view and type of schema `outbox`, as the comments in the database
have them (`\df+ outbox.*`, `\d+ outbox.deliveries`). `test/reference` writes this
page: change the comment, not the page. What to do with them is in the other pages;
[README.md](../README.md#where-to-go-on) has a list.

Arguments with a default are optional, and best given by name.

END

# A type or a default as the pages and the install script write it.
sub short
{
	my $type = shift;
	$type =~ s/\b$_\b/$short_name{$_}/g foreach keys %short_name;
	return $type;
}

sub default_of
{
	my $argument = shift;
	return '' unless defined $argument->{default};
	return ' DEFAULT ' . ($argument->{default} =~ s/::[\w ."]+(?:\[\])?$//r);
}

# What is prose, kept from being taken for markup.
sub prose
{
	my $text = shift;
	$text =~ s/([*|\\])/\\$1/g;
	$text =~ s/</&lt;/g;
	return $text;
}

# One line for each thing that is said, however the comment is wrapped.
sub lines_of
{
	my $comment = shift;
	return split /\n/, ($comment // '') =~ s/\n[ ]+/ /gr;
}

sub whose
{
	my $parts = shift;
	return '' unless $parts;
	return 'For ' . join(', ', map { "${_}s" } @$parts) . ".\n\n";
}

sub signature
{
	my $f = shift;
	my @all = @{ $f->{arguments} || [] };
	my @in = map { "$_->{name} " . short($_->{type}) . default_of($_) } grep { $_->{mode} =~ /[iv]/ } @all;
	my @out = map { "$_->{name} " . short($_->{type}) } grep { $_->{mode} =~ /[ot]/ } @all;
	my $result = @out ? ($f->{many} ? 'TABLE ' : '') . '(' . join(', ', @out) . ')' : ($f->{many} ? 'SETOF ' : '') . short($f->{result});
	my $call = ($f->{kind} eq 'p' ? 'CALL ' : '') . "outbox.$f->{name}(";
	my $text = $call . join(', ', @in) . ')';
	$text = "$call\n    " . join(",\n    ", @in) . ')' if length $text > 100;
	$text .= ($text =~ /\n/ || length($text) + length($result) > 90 ? "\n" : ' ') . "RETURNS $result" unless $f->{kind} eq 'p';
	return "```\n$text\n```\n\n";
}

sub function_text
{
	my $f = shift;
	my %is_argument = map { $_->{name} => 1 } grep { defined $_->{name} } @{ $f->{arguments} || [] };
	my $text = "### outbox.$f->{name}()\n\n" . signature($f);
	my $in_list = 0;
	# Where a line tells of several arguments, each has its own.
	my $argument = '(?:' . join('|', map { quotemeta } sort keys %is_argument) . ')(?: \([^)]*\))?';
	foreach my $line (map { %is_argument ? split /(?<=\.) (?=$argument(?:, $argument)*: )/ : $_ } lines_of($f->{comment}))
	{
		my ($names, $range, $meaning) = $line =~ /^([a-z_]\w*(?:,? (?:or )?[a-z_]\w*)*?)( \([^)]*\))?: (.*)$/;
		my @names = defined $names ? $names =~ /(\w+)/g : ();
		if (@names && !grep { !$is_argument{$_} && $_ ne 'or' } @names)
		{
			$names =~ s/\b(?!or\b)(\w+)/`$1`/g;
			$text .= "- $names" . prose($range // '') . ': ' . prose($meaning) . "\n";
			$in_list = 1;
			next;
		}
		$text .= "\n" if $in_list;
		$in_list = 0;
		$text .= prose($line) . "\n\n";
	}
	$text .= "\n" if $in_list;
	return $text . whose($f->{parts});
}

sub relation_text
{
	my $r = shift;
	my $text = "### outbox.$r->{name}\n\n" . join('', map { prose($_) . "\n\n" } lines_of($r->{comment}));
	my $said = grep { defined $_->{comment} } @{ $r->{columns} };
	$text .= '| column | type |' . ($said ? ' meaning |' : '') . "\n|---|---|" . ($said ? '---|' : '') . "\n";
	foreach my $column (@{ $r->{columns} })
	{
		$text .= "| `$column->{name}` | " . short($column->{type}) . ' |' . ($said ? ' ' . prose(join ' ', lines_of($column->{comment})) . ' |' : '') . "\n";
	}
	return "$text\n" . whose($r->{parts});
}

# The page; query is called with SQL and returns the one value of its answer.
sub page
{
	my $query = shift;
	my @functions = @{ decode_json($query->($functions)) };
	my @relations = @{ decode_json($query->($relations)) };
	my @views = grep { $_->{kind} eq 'v' } @relations;
	my @types = grep { $_->{kind} eq 'c' } @relations;
	my $page = $head;
	foreach my $list (\@functions, \@views, \@types)
	{
		my $call = $list == \@functions ? '()' : '';
		$page .= ($list == \@functions ? '**Functions:** ' : $list == \@views ? '**Views:** ' : '**Types:** ')
		  . join(" ·\n", map { "[$_->{name}$call](#outbox$_->{name})" } @$list) . "\n\n";
	}
	$page .= "## Functions\n\n" . join '', map { function_text($_) } @functions;
	$page .= "## Views\n\n" . join '', map { relation_text($_) } @views;
	$page .= "## Types\n\n" . join '', map { relation_text($_) } @types;
	utf8::encode($page) if utf8::is_utf8($page);
	return $page =~ s/\n+\z/\n/r;
}

1;
