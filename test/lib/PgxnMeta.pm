# What the PGXN Meta Spec 1.0.0 (https://pgxn.org/spec/) asks of a META.json.
#
#   PgxnMeta::problems(JSON::PP->new->decode($text))     # what does not suit it, a line each
#
# Written from the specification: its types, its keys, which of them are
# required, and that every other key begins with x_.
package PgxnMeta;

use strict;
use warnings;

use JSON::PP ();

my @licenses = qw(agpl_3 apache_1_1 apache_2_0 artistic_1 artistic_2 bsd freebsd gfdl_1_2 gfdl_1_3 gpl_1 gpl_2 gpl_3 lgpl_2_1 lgpl_3_0
  mit mozilla_1_0 mozilla_1_1 openssl perl_5 postgresql qpl_1_0 ssleay sun zlib open_source restricted unrestricted unknown);
my $number = qr/(?:0|[1-9][0-9]*)/;
my $semantic = qr/$number\.$number\.$number(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?/;
my $range = qr/(?:(?:<=?|>=?|==|!=)\s*)?(?:$semantic|0)/;

# Kinds of texts: a pattern each.
my %text = (
	string => qr/./s,
	lower => qr/\A[^[:upper:]]+\z/,
	term => qr{\A[^/\\\s[:cntrl:]]{2,}\z},
	tag => qr{\A[^/\\[:cntrl:]]{1,255}\z},
	uri => qr{\A[A-Za-z][A-Za-z0-9+.-]*:\S+\z},
	email => qr/\A[^@\s]+@[^@\s]+\z/,
	path => qr{\A(?!/)(?!(?:.*/)?\.\.(?:/|\z))[^\\]+\z},
	version => qr/\A$semantic\z/,
	range => qr/\A$range(?:,\s*$range)*\z/,
	license => do { my $names = join '|', @licenses; qr/\A(?:$names)\z/ },
	status => qr/\A(?:stable|testing|unstable)\z/,
	spec => qr/\A1\.0\.[0-9]+\z/,
	phase => qr/\A(?:configure|build|test|runtime|develop)\z/,
	relation => qr/\A(?:requires|recommends|suggests|conflicts)\z/);

# A map with the keys that are named, with ! those that are required, and any that
# begin with x_; a map with any keys of a kind; a list.
sub keys_of { return { map => {@_} } }
sub any_of { my ($kind, $value) = @_; return { keys => $kind, values => $value } }
sub list_of { return { list => $_[0] } }

my $relations = any_of(relation => any_of(term => 'range'));
my $meta = keys_of(
	'name!' => 'term',
	'version!' => 'version',
	'abstract!' => 'string',
	'maintainer!' => list_of('string'),
	'license!' => { either => [ list_of('license'), any_of(string => 'uri') ] },
	'provides!' => any_of(term => keys_of('file!' => 'path', 'version!' => 'version', abstract => 'string', docfile => 'path')),
	'meta-spec!' => keys_of('version!' => 'spec', url => 'uri'),
	description => 'string',
	generated_by => 'string',
	tags => list_of('tag'),
	no_index => keys_of(file => list_of('path'), directory => list_of('path')),
	prereqs => any_of(phase => $relations),
	release_status => 'status',
	resources => keys_of(
		homepage => 'uri',
		bugtracker => keys_of(web => 'uri', mailto => 'email'),
		repository => keys_of(url => 'uri', web => 'uri', type => 'lower')));

sub check
{
	my ($at, $what, $value) = @_;

	return "$at is null" unless defined $value;
	if (!ref $what)
	{
		return "$at is not a string" if ref $value;
		return $value =~ $text{$what} ? () : "$at is no $what: $value";
	}
	return check($at, $what->{either}[ ref $value eq 'HASH' ? 1 : 0 ], $value) if $what->{either};
	if ($what->{list})
	{
		# One stands for a list of one.
		return check($at, $what->{list}, $value) unless ref $value;
		return "$at is not a list" if ref $value ne 'ARRAY';
		return "$at is empty" unless @$value;
		return map { check("$at\[$_]", $what->{list}, $value->[$_]) } 0 .. $#$value;
	}
	return "$at is not a map" if ref $value ne 'HASH';
	if ($what->{values})
	{
		return "$at is empty" unless %$value;
		return map { (check("the name $_ in $at", $what->{keys}, $_), check("$at.$_", $what->{values}, $value->{$_})) } sort keys %$value;
	}
	my @required = map { /^(.*)!$/ ? $1 : () } sort keys %{ $what->{map} };
	return (
		(map { "$at has no $_" } grep { !exists $value->{$_} } @required),
		map { my $kind = $what->{map}{"$_!"} // $what->{map}{$_}; $kind ? check("$at.$_", $kind, $value->{$_}) : /^x_/i ? () : "$at has a key that is unknown, $_" }
		  sort keys %$value);
}

sub problems { return check('META.json', $meta, $_[0]); }

1;
