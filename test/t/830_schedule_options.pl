# An option of a schedule is one row of outbox_internal.schedule_options().
# Whatever is declared there is taken, stored, shown, refused out of range, put
# back by reset, ensured, written into definitions, and documented.
use strict;
use warnings;

use JSON::PP ();
use OptionTable;
use OutboxCluster;
use Test::More;

my $node = OutboxCluster->create('options', preload => 0);
my $json = JSON::PP->new->utf8(0)->canonical->allow_nonref;

sub rows
{
	my $query = shift;
	return @{ $json->decode($node->sql("SELECT coalesce(jsonb_agg(r), '[]') FROM ($query) r")) };
}

my @options = rows('SELECT * FROM outbox_internal.schedule_options()');
my %option = map { $_->{name} => $_ } @options;
cmp_ok(scalar @options, '>=', 15, 'there are options');
is(scalar keys %option, scalar @options, 'each is declared once');

# --- a value of each that is not the default, and what it stands instead of
my $run = q{CREATE FUNCTION public.occur(outbox.occurrence) RETURNS void LANGUAGE sql AS 'SELECT'; ALTER FUNCTION public.occur OWNER TO runner};
$node->sql("CREATE ROLE runner; $run");
my %example = (
	cron => '0 9 * * MON-FRI',
	every => '90 s',
	topic => 'other.due',
	payload => '{"at": "{{scheduled_at}}"}',
	timezone => 'Europe/Berlin',
	headers => '{"x-a": "b"}',
	starts_at => '2031-01-01 00:00:00+00',
	ends_at => '2041-01-01 00:00:00+00',
	function => 'public.occur(outbox.occurrence)');
my %instead = (cron => 'every', function => 'topic');
my %plain = (every => '1 day', topic => 'a.due');

sub example
{
	my $o = shift;
	return $example{ $o->{name} } // ($o->{choices} ? $o->{choices}[-1] : $o->{type} eq 'text' ? "some $o->{name}" : $o->{high})
	  // die "give an example of option $o->{name}";
}

sub in_view
{
	my $schedule = shift;
	my ($row) = rows("SELECT * FROM outbox.schedules WHERE name = '$schedule'");
	return $row;
}

# A call with one option beside what a schedule needs.
sub call
{
	my ($function, $schedule, $option, $value) = @_;
	my %given = $function eq 'alter_schedule' ? () : %plain;
	delete $given{ $instead{$option} // '' };
	$given{$option} = $value;
	return "SELECT outbox.$function('$schedule', " . join(', ', map { "$_ => " . $node->quote($given{$_}) } sort keys %given) . ')';
}

$node->sql(q{SELECT outbox.create_schedule('plain', every => '1 day', topic => 'a.due')});
my $plain = in_view('plain');
foreach my $o (@options)
{
	my ($name, $value) = ($o->{name}, example($o));
	ok(exists $plain->{$name}, "$name: shown") or next;

	$node->sql(call('create_schedule', $name, $name, $value));
	my $got = $json->encode(in_view($name)->{$name});
	isnt($got, $json->encode($plain->{$name}), "$name: stored");
	is($node->sql("SELECT \"$name\" = " . $node->quote($value) . " FROM outbox.schedule WHERE name = '$name'"), 't', "$name: as it was given");
	is($node->sql(call('ensure_schedule', $name, $name, $value)), '{}', "$name: there is nothing to ensure");

	my @changed = sort($name, $instead{$name} // ());
	is(join(' ', sort split / /, $node->sql("SELECT array_to_string(outbox.ensure_schedule('$name', every => '1 day', topic => 'a.due'), ' ')")), "@changed",
		"$name: ensured to be what it is without");
	is($json->encode(in_view($name)->{$name}), $json->encode($plain->{$name}), "$name: and it is");
	like($node->sql(call('ensure_schedule', $name, $name, $value)), qr/\b\Q$name\E\b/, "$name: ensured");
	is($json->encode(in_view($name)->{$name}), $got, "$name: as it was created");
	next if $instead{$name} || exists $plain{$name};

	$node->sql("SELECT outbox.alter_schedule('$name', reset => '{$name}')");
	is($json->encode(in_view($name)->{$name}), $json->encode($plain->{$name}), "$name: reset puts it back");
	$node->sql(call('alter_schedule', $name, $name, $value));
	is($json->encode(in_view($name)->{$name}), $got, "$name: changed");
}

# --- in another database, made by their definitions
$node->extension('other');
$node->sql($run, 'other');
my $definitions = $node->sql(q{SELECT string_agg(outbox.schedule_definition(name) || ';', E'\n') FROM outbox.schedules});
$node->sql("SET intervalstyle = iso_8601; SET timezone = 'Asia/Tokyo'; SET standard_conforming_strings = off; $definitions", 'other');
my $content = q{SELECT string_agg((to_jsonb(s) - '{id,created_at,home}'::text[])::text, E'\n' ORDER BY s.name) FROM outbox.schedule s};
is($node->sql($content, 'other'), $node->sql($content), 'they are the same');

# --- nothing beyond its range
foreach my $o (grep { defined $_->{low} } @options)
{
	my $step = $o->{type} eq 'interval' ? "'1 us'::interval" : '1';
	foreach my $beyond ("'$o->{low}'::$o->{type} - $step", "'$o->{high}'::$o->{type} + $step")
	{
		my $every = $o->{name} eq 'every' ? '' : "every => '1 day', ";
		my (undef, undef, $error) = $node->psql('postgres', "SELECT outbox.create_schedule('beyond', ${every}topic => 'a', $o->{name} => $beyond)");
		like($error, qr/invalid \Q$o->{name}\E:.*It is an? (number|interval) from \Q$o->{low}\E to/s, "$o->{name}: not $beyond");
	}
}
foreach my $o (grep { $_->{choices} } @options)
{
	like($node->sql_error(call('create_schedule', 'beyond', $o->{name}, 'none of them')), qr/22023: +invalid \Q$o->{name}\E: "none of them"/, "$o->{name}: one of the choices");
}

# --- the documents know each
my %documented = OptionTable::read_table('doc/schedules.md', 'option of a schedule');
my $comment = $node->sql(q{SELECT obj_description('outbox.create_schedule'::regproc)});
is_deeply([ grep { !exists $option{$_} } sort keys %documented ], [], 'doc/schedules.md knows no option that is not there');
foreach my $o (@options)
{
	ok(exists $documented{ $o->{name} }, "$o->{name}: in the table of doc/schedules.md") or next;
	is($documented{ $o->{name} }, $o->{initial} // '', "$o->{name}: with its default");
	like($comment, qr/^\Q$o->{name}\E \(.*\): ./m, "$o->{name}: in the comment on create_schedule()");
}

$node->stop;
done_testing();
