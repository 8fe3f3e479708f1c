# An option of a handler is one row of outbox_internal.options(), a format one row of a
# table in the library.  Whatever is declared there is taken, stored, shown,
# refused out of range, put back by reset, and documented.
use strict;
use warnings;
use utf8;

use JSON::PP ();
use OptionTable;
use OutboxCluster;
use Test::More;

my $node = OutboxCluster->create('options', preload => 0);
my $json = JSON::PP->new->utf8(0)->canonical->allow_nonref;

# What a statement says beside its result.
sub warning
{
	my (undef, undef, $error) = $node->psql('postgres', shift);
	return $error;
}

sub rows
{
	my $query = shift;
	return @{ $json->decode($node->sql("SELECT coalesce(jsonb_agg(r), '[]') FROM ($query) r")) };
}

my @options = rows('SELECT * FROM outbox_internal.options()');
my %option = map { $_->{name} => $_ } @options;
my @formats = map { $_->{name} } rows('SELECT * FROM outbox_internal.formats()');
is($node->sql("SELECT string_agg(name, ', ' ORDER BY name) FROM outbox_internal.formats() WHERE batches"), 'cloudevents, envelope, raw',
	'formats for batches are those of which t/300 looks whether each item says which message it is');
cmp_ok(scalar @options, '>=', 30, 'there are options');
is(scalar keys %option, scalar @options, 'each is declared once');
is_deeply($option{format}{choices}, \@formats, 'the formats are those of the library');

# --- a value of each that is not the default
$node->sql(q{CREATE FUNCTION public.settled(outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT';
	CREATE ROLE settler; ALTER FUNCTION public.settled OWNER TO settler; GRANT CREATE, USAGE ON SCHEMA public TO settler});
my %example = (
	backoff => '{1s,2s}',
	rules => '{"404": {"action": "fail"}}',
	headers => '{"x-a": "b"}',
	secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
	authorization => 'Bearer x',
	ordered => 'true',
	on_settle => 'public.settled(outbox.settlement)');
# What an option cannot do without.
my %beside = (
	tls_key_file => "tls_certificate_file => '/c'",
	on_dead => 'ordered => true',
	backoff_base => "backoff_max => '30 days'",
	breaker_wait => "breaker_wait_max => '1 day'");

sub example
{
	my $o = shift;
	return $example{ $o->{name} } // ($o->{choices} ? $o->{choices}[-1] : $o->{type} eq 'text' ? "/$o->{name}" : $o->{high})
	  // die "give an example of option $o->{name}";
}

sub in_view
{
	my $handler = shift;
	my ($row) = rows("SELECT * FROM outbox.handlers WHERE handler = '$handler'");
	return $row;
}

sub call
{
	my ($function, $handler, $option, $value) = @_;
	my $url = $function ne 'alter_handler' ? "'{t}', 'https://example.com/', " : '';
	my $more = $beside{$option} && ($function ne 'alter_handler' || $option ne 'on_dead') ? ", $beside{$option}" : '';
	return "SELECT outbox.$function('$handler', $url\"$option\" => " . $node->quote($value) . "$more)";
}

# The column of the view that tells of an option.
sub shown
{
	my $o = shift;
	return $o->{shown} && $o->{shown} =~ /AS (\w+)\z/ ? $1 : $o->{name};
}

$node->sql("SELECT outbox.create_handler('plain', '{t}', 'https://example.com/')");
my $plain = in_view('plain');
foreach my $o (@options)
{
	my ($name, $value, $shown) = ($o->{name}, example($o), shown($o));
	ok(exists $plain->{$shown}, "$name: shown as $shown") or next;

	$node->sql(call('create_handler', $name, $name, $value));
	my $got = $json->encode(in_view($name)->{$shown});
	isnt($got, $json->encode($plain->{$shown}), "$name: stored");
	is($node->sql("SELECT \"$name\" = " . $node->quote($value) . " FROM outbox.handler WHERE name = '$name'"), 't', "$name: as it was given")
	  unless $o->{secret};
	is($node->sql(call('ensure_handler', $name, $name, $value)), '{}', "$name: there is nothing to ensure");
	next if grep { $_ eq 'creation' } @{ $o->{scope} };

	my ($beside) = ($beside{$name} // '') =~ /^(\w+)/;
	is(join(' ', sort split / /, $node->sql("SELECT array_to_string(outbox.ensure_handler('$name', '{t}', 'https://example.com/'" . ($name eq 'on_dead' ? ', ordered => true' : '') . "), ' ')")),
		$o->{secret} ? '' : join(' ', sort grep { defined && $_ ne 'ordered' } $name, $beside), "$name: ensured to be what it is without");
	is($json->encode(in_view($name)->{$shown}), $o->{secret} ? $got : $json->encode($plain->{$shown}), "$name: and it is");
	like($node->sql(call('ensure_handler', $name, $name, $value)), $o->{secret} ? qr/^\{\}$/ : qr/\b\Q$name\E\b/, "$name: ensured");
	is($json->encode(in_view($name)->{$shown}), $got, "$name: as it was created");

	$node->sql("SELECT outbox.alter_handler('$name', reset => '{$name}')");
	is($json->encode(in_view($name)->{$shown}), $json->encode($plain->{$shown}), "$name: reset puts it back");
	$node->sql(call('alter_handler', $name, $name, $value));
	is($json->encode(in_view($name)->{$shown}), $got, "$name: changed");

	my (undef, undef, $error) = $node->psql('postgres', "SELECT outbox.create_handler('pull', '{t}', \"$name\" => " . $node->quote($value) . ')');
	if (grep { $_ eq 'push' } @{ $o->{scope} })
	{
		like($error, qr/option \Q$name\E needs a handler with a URL/, "$name: for handlers with a URL");
	}
	else
	{
		unlike($error, qr/needs a handler with a URL/, "$name: for every handler");
		$node->sql("SELECT outbox.drop_handler('pull')") if $error eq '';
	}
}

# --- in another database, made by their definitions
$node->extension('other');
$node->sql('CREATE FUNCTION public.settled(outbox.settlement) RETURNS void LANGUAGE sql AS $$SELECT$$; ALTER FUNCTION public.settled OWNER TO settler', 'other');
my $definitions = $node->sql(q{SELECT string_agg(outbox.handler_definition(handler) || ';', E'\n') FROM outbox.handlers});
unlike($definitions, qr/whsec|Bearer/, 'no secret is in them');
is(() = $definitions =~ /^-- It also has (?:secret|authorization), which are not shown\.$/mg, 2, 'but that there is one');
$node->sql("SET intervalstyle = iso_8601; SET standard_conforming_strings = off; $definitions", 'other');
my $content = q{SELECT string_agg((to_jsonb(h) - '{id,created_at,home}'::text[])::text, E'\n' ORDER BY h.name) FROM outbox.handler h WHERE h.id <> 0 AND h.dropped_at IS NULL};
is($node->sql($content, 'other'), $node->sql($content), 'they are the same');

# --- nothing beyond its range
foreach my $o (grep { defined $_->{low} } @options)
{
	my $type = $o->{type} eq 'interval' ? 'interval' : 'numeric';
	my $step = $type eq 'interval' ? "'1 us'" : "'0.0001'";
	$step = "'1'" if $o->{type} eq 'int';
	foreach my $beyond ("'$o->{low}'::$type - $step", "'$o->{high}'::$type + $step")
	{
		my (undef, undef, $error) = $node->psql('postgres',
			"SELECT outbox.create_handler('beyond', '{t}', 'https://example.com/', $o->{name} => ($beyond)::$o->{type})");
		like($error, qr/invalid \Q$o->{name}\E:.*It is an? (number|interval) from \Q$o->{low}\E to/s, "$o->{name}: not $beyond");
	}
}

# --- the documents know each
my $comment = $node->sql(q{SELECT obj_description('outbox.create_handler'::regproc)});
my %documented = OptionTable::read_table('doc/handlers.md', 'option');
is_deeply([ grep { !exists $option{$_} } sort grep { /^[a-z]/ } keys %documented ], [], 'doc/handlers.md knows no option that is not there');
foreach my $o (@options)
{
	my $default = $documented{ $o->{name} };
	ok(defined $default, "$o->{name}: in the table of doc/handlers.md") or next;
	is($default, $o->{initial} // '', "$o->{name}: with its default");
	like($comment, qr/^\Q$o->{name}\E \(.*\): ./m, "$o->{name}: in the comment on create_handler()");
}
my ($row) = OptionTable::slurp('doc/handlers.md') =~ /^\| `format` \|[^|]*\|([^|]*)\|/m;
is_deeply([ $row =~ /`([\w-]+)`/g ], \@formats, 'doc/handlers.md lists the formats');
my ($table) = OptionTable::slurp('doc/receivers.md') =~ /^\| format \| body .*?\n(.*?)\n\n/ms;
is_deeply([ $table =~ /^\| `([\w-]+)` \|/mg ], \@formats, 'and receivers.md says what each is');

# --- a row that was changed by hand
$node->sql(q{UPDATE outbox.handler SET url = 'https://exa mple/' WHERE name = 'plain'; UPDATE outbox.handler SET concurrency = 0 WHERE name = 'timeout'});
is($node->sql(q{SELECT string_agg(handler || ': ' || severity || ': ' || hint, '; ' ORDER BY handler) FROM outbox.verify() WHERE finding ~ 'options'}),
	'plain: error: The row was changed by hand, and the handler may not be served: invalid URL: it has a space or control character. Put it right with outbox.alter_handler().; '
	  . 'timeout: error: The row was changed by hand, and the handler may not be served: invalid concurrency: 0. Put it right with outbox.alter_handler().',
	'verify() tells of options that a handler cannot have');
$node->sql(q{SELECT outbox.alter_handler('plain', url => 'https://example.com/'), outbox.alter_handler('timeout', concurrency => 5)});
is($node->sql(q{SELECT count(*) FROM outbox.verify() WHERE finding ~ 'options'}), 0, 'and not when they are put right');

# --- what a producer cannot say of the request, the handler can
foreach my $name (qw(x-http-method-override X-Forwarded-For forwarded X-Original-URL x-real-ip via origin accept))
{
	is($node->sql("SELECT detail FROM outbox.try_stage('t', headers => jsonb_build_object('$name', '1'))"),
		"header \"$name\" cannot be set by a message", "$name: not by a message");
	$node->sql("SELECT outbox.alter_handler('plain', headers => jsonb_build_object('$name', '1'))");
}
foreach my $call ("SELECT outbox.stage('t', headers => '{\"Accept-Encoding\": \"gzip\"}')", "SELECT outbox.alter_handler('plain', headers => '{\"accept-encoding\": \"gzip\"}')")
{
	like(warning($call), qr/header "accept-encoding" is reserved/i, 'accept-encoding: by nobody');
}

# --- credentials without TLS
my $clear = qr/^.*WARNING:  authorization of handler "clear" is sent unencrypted\s+HINT:  Use a URL that begins with https:\/\//s;
like(warning(q{SELECT outbox.create_handler('clear', '{t}', 'http://example.com/', "authorization" => 'Bearer x')}), $clear, 'a warning at creation');
is(warning(q{SELECT outbox.alter_handler('clear', concurrency => 5)}), '', 'not when something else is changed');
like(warning(q{SELECT outbox.alter_handler('clear', "authorization" => 'Bearer y')}), $clear, 'but when the credentials are');
is(warning(q{SELECT outbox.alter_handler('clear', url => 'https://example.com/')}), '', 'none with TLS');
like(warning(q{SELECT outbox.alter_handler('clear', url => 'HTTP://127.0.0.1.example.com/')}), $clear, 'or when the URL becomes one without');
foreach my $near ('http://127.0.0.1:8080/', 'http://localhost', 'http://[::1]/x', 'http://LOCALHOST?x')
{
	is(warning("SELECT outbox.alter_handler('clear', url => '$near')"), '', "none for $near");
}
is(warning(q{SELECT outbox.alter_handler('clear', url => 'http://example.com/', reset => '{authorization}')}), '', 'none without credentials');

$node->stop;
done_testing();
