# A payload's text, written piece by piece, is jsonb's own to the byte.
use strict;
use warnings;

use OutboxCluster;
use Test::More;
use UnitModule;

my $node = OutboxCluster->create('main', preload => 0, extension => 0);
UnitModule->build->create_functions($node, 'postgres');

my @values = (
	'null', 'true', 'false', '0', '-1.50', '1e30', '""', '"x"', '[]', '{}', '[[]]', '[{}]', '{"a": {}}', '{"a": []}',
	'[1, "two", null, [true, [false]], {"three": [4, {"five": 6}]}]', '{"": "", "b": [], "c": {"d": [1, 2]}, "e": null}',
	'"\\\\\\"\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f/"', '{"\\"quoted\\" \\n": "\\\\"}', '"äöü€𝄞"', '["\\ud834\\udd1e", "日本語"]', '[[[[[[[[[[1]]]]]]]]], 2]',);
foreach my $value (@values)
{
	my $quoted = $node->quote($value);
	is($node->sql("SELECT string_agg(DISTINCT (unit.json_text(($quoted), step) = ($quoted)::jsonb::text)::text, ' ') FROM unnest(ARRAY[1, 2, 3, 7, 1000000]) AS step"),
		'true', "the text of $value");
}

# Long strings and keys, many tokens, numbers of many digits.
my %large = (
	string => "to_jsonb(repeat('plain \"quoted\" \\\\ ' || chr(10) || chr(1) || 'ü', 50000))",
	key => "jsonb_build_object(repeat('k\"', 100000), repeat('v', 100000), 'b', 1)",
	array => "(SELECT jsonb_agg(jsonb_build_object('n', g, 'a', ARRAY[g * 1.07, NULL], 't', md5(g::text))) FROM generate_series(1, 20000) AS g)",
	number => "jsonb_build_array(1e1000::numeric, 1e-1000::numeric, repeat('7', 5000)::numeric)",);
foreach my $what (sort keys %large)
{
	is($node->sql("WITH v AS MATERIALIZED (SELECT $large{$what} AS v) SELECT string_agg(DISTINCT (unit.json_text(v, step) = v::text)::text, ' ') FROM v, unnest(ARRAY[100, 4096, 1000000000]) AS step"),
		'true', "a large $what");
}
$node->stop;
done_testing();
