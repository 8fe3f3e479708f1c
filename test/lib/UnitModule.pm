# Modules of src/format behind SQL functions, and a look at shared memory, for tests: builds
# test/unit/server/outbox_unit and creates its functions in schema unit.
#
#   my $unit = UnitModule->build;
#   $unit->create_functions($node, 'postgres');
#   my $request = $unit->request($node, 'postgres', \%form, \@messages, $now);
#   ... $request->{headers}{'webhook-id'}, $request->{body} ...
package UnitModule;

use strict;
use warnings;

use Cwd qw(getcwd);
use JSON::PP ();
use MIME::Base64 qw(decode_base64);

my $json = JSON::PP->new->utf8->canonical;

# In the tree that the test runs in; dies with the compiler's words.
sub build
{
	my $class = shift;
	my $log = qx(make -s with_llvm=no PG_CONFIG="$ENV{PG_CONFIG}" unit-module 2>&1);
	die "cannot build the unit module:\n$log" if $? != 0;
	return bless { library => getcwd() . '/test/unit/server/outbox_unit' }, $class;
}

sub create_functions
{
	my ($self, $node, $database) = @_;
	my $library = $node->quote($self->{library});
	$node->safe_psql($database, <<"END");
CREATE SCHEMA unit;
CREATE FUNCTION unit.request(form jsonb, messages jsonb[], now timestamptz,
	OUT handler_lines text[], OUT lines text[], OUT body bytea)
	LANGUAGE c STRICT AS $library, 'unit_request';
CREATE FUNCTION unit.request_ns(form jsonb, messages jsonb[], rounds int) RETURNS float8
	LANGUAGE c STRICT AS $library, 'unit_request_ns';
CREATE FUNCTION unit.request_growth(form jsonb, messages jsonb[], rounds int, OUT failures int, OUT kept bigint, OUT grew boolean)
	LANGUAGE c STRICT AS $library, 'unit_request_growth';
CREATE FUNCTION unit.sign(secrets text[], expires timestamptz[], id text, at timestamptz, stamp text, body text) RETURNS text
	LANGUAGE c STRICT AS $library, 'unit_sign';
CREATE FUNCTION unit.turn(handler int) RETURNS bigint
	LANGUAGE c STRICT AS $library, 'unit_turn';
CREATE FUNCTION unit.json_text(value jsonb, step int) RETURNS text
	LANGUAGE c STRICT AS $library, 'unit_json_text';
CREATE FUNCTION unit.payload_text(kind text, payload bytea, step int) RETURNS text
	LANGUAGE c STRICT AS $library, 'unit_payload_text';
CREATE FUNCTION unit.content_type(content_type text) RETURNS text
	LANGUAGE c STRICT AS $library, 'unit_content_type';
CREATE FUNCTION unit.wal_before(insert_lsn pg_lsn, segment_size int) RETURNS pg_lsn
	LANGUAGE c STRICT AS $library, 'unit_wal_before';
END
	return;
}

# A request as the receiver would see it: lines (array, in order), headers
# (hash by name; a name that comes twice dies) and body (bytes).
sub request
{
	my ($self, $node, $database, $form, $messages, $now) = @_;
	my $list = join ', ', map { $node->quote($json->encode($_)) . '::jsonb' } @$messages;
	my $answer = $node->safe_psql($database,
		'SELECT jsonb_build_object($$lines$$, to_jsonb(handler_lines || lines), $$body$$, encode(body, $$base64$$)) FROM unit.request('
		  . $node->quote($json->encode($form))
		  . ", ARRAY[$list], "
		  . $node->quote($now // '2025-10-09 09:00:00+00') . ')');
	my $request = $json->decode($answer);
	my %headers;
	foreach my $line (@{ $request->{lines} })
	{
		my ($name, $value) = $line =~ /\A([^:]+): (.*)\z/s or die "no header line: $line";
		die "header $name comes twice" if exists $headers{$name};
		$headers{$name} = $value;
	}
	return { lines => $request->{lines}, headers => \%headers, body => decode_base64($request->{body}) };
}

1;
