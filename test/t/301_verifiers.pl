# Receivers' own libraries accept what is sent: signatures by npm's
# standardwebhooks and svix, events by the CloudEvents SDK.
use strict;
use warnings;
use utf8;

use JSON::PP ();
use OutboxCluster;
use Test::More;
use UnitModule;
use Verifiers;

my $verifiers = Verifiers->install or plan skip_all => Verifiers->missing;
my $unit = UnitModule->build;
my $node = OutboxCluster->create('verifiers', preload => 0, extension => 0);
$unit->create_functions($node, 'postgres');

my $old = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
my $new = 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD';
my $private = 'whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==';
my $public = 'whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=';
my $id = '0199c000-0000-7000-8000-000000000001';
my %message = (
	id => $id, staged_at => '2025-10-09 08:53:20.5+00', topic => 'billing.invoice.paid', key => 'invoice-7', tenant => 'acme', correlation_id => 'c-1',
	payload => { total => '12.50', note => "naïve \x{1F600} \"quoted\"" },
	headers => { traceparent => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tracestate => 'a=b' });
my %second = (%message, id => '0199c000-0000-7000-8000-000000000002', payload => [ 1, 2 ]);

# Signatures are judged by the clock, so requests are of this moment.
sub request
{
	my ($form, @messages) = @_;
	return $unit->request($node, 'postgres', { handler => 'h', user_agent => 'outbox/1.0', %$form }, \@messages,
		$node->safe_psql('postgres', 'SELECT clock_timestamp()'));
}

sub accepts
{
	my ($check, $request, $secret, $name) = @_;
	my $answer = $verifiers->check($check, $request, $secret);
	ok(exists $answer->{ok}, "$check accepts $name") or diag($answer->{error});
	return $answer->{ok};
}

sub refuses
{
	my ($check, $request, $secret, $name) = @_;
	my $answer = $verifiers->check($check, $request, $secret);
	like($answer->{error} // '', qr/signature/i, "$check refuses $name");
	return;
}

# --- signatures
foreach my $library (qw(standardwebhooks svix))
{
	foreach my $format (qw(raw envelope cloudevents cloudevents-binary))
	{
		my $request = request({ format => $format, secrets => [$new] }, \%message);
		my $body = accepts($library, $request, $new, "$format");
		my $data = $format eq 'envelope' || $format eq 'cloudevents' ? $body->{data} : $body;
		is_deeply($data, $message{payload}, "$library hands on the payload of $format");
	}
	my $request = request({ format => 'envelope', batch => JSON::PP::true, secrets => [$new] }, \%message, \%second);
	is(scalar @{ accepts($library, $request, $new, 'a batch') }, 2, "$library hands on a batch");

	$request = request({ secrets => [ $new, $old ] }, \%message);
	accepts($library, $request, $new, 'the new secret while two sign');
	accepts($library, $request, $old, 'the old secret while two sign');
	$request = request({ secrets => [ $private, $new ] }, \%message);
	accepts($library, $request, $new, 'an HMAC signature beside an Ed25519 one');

	$request = request({ secrets => [$new] }, \%message);
	refuses($library, $request, $old, 'another secret');
	refuses($library, { %$request, body => $request->{body} . ' ' }, $new, 'another body');
	refuses($library, { %$request, headers => { %{ $request->{headers} }, 'webhook-id' => $second{id} } }, $new, 'another id');
}
my $request = request({ secrets => [ $private, $new ] }, \%message);
accepts('ed25519', $request, $public, 'a v1a signature');
refuses('ed25519', { %$request, body => $request->{body} . ' ' }, $public, 'one of another body');

# --- CloudEvents
my %expected = (
	specversion => '1.0', id => $id, source => '/outbox/b%C3%BCro%201', type => 'billing.invoice.paid', subject => 'invoice-7', time => '2025-10-09T08:53:20.500Z',
	partitionkey => 'invoice-7', tenant => 'acme', correlationid => 'c-1', datacontenttype => 'application/json',
	traceparent => $message{headers}{traceparent}, tracestate => 'a=b', data => $message{payload});
foreach my $format (qw(cloudevents cloudevents-binary))
{
	my $events = accepts('cloudevents', request({ format => $format }, \%message), undef, $format);
	is(scalar @$events, 1, "$format is one event");
	# The SDK leaves what the binding percent-encodes as it is written.
	$events->[0]{source} =~ s/%25/%/g if $format eq 'cloudevents-binary';
	is_deeply({ map { $_ => $events->[0]{$_} } keys %expected }, \%expected, "$format: every attribute arrives");

	next if $format eq 'cloudevents-binary';
	$events = accepts('cloudevents', request({ format => $format, batch => JSON::PP::true }, \%message, \%second), undef, "a batch of $format");
	is_deeply([ map { $_->{id} } @$events ], [ $id, $second{id} ], "$format: a batch is two events");
	is_deeply($events->[1]{data}, [ 1, 2 ], "$format: each with its data");
}

# --- texts and bytes
my %bodies = map { delete $_->{payload}; $_->{content_type} => $_ } (
	{ %message, payload_text => "<a b=\"\x{1F600}\"/>\n", content_type => 'application/xml' },
	{ %message, payload_text => "{\"b\": 1.0, \"a\": \"\x{e4}\"}", content_type => 'application/vnd.x+json' },
	{ %message, payload_hex => '00ff0a41', content_type => 'application/x-protobuf' });
foreach my $type (sort keys %bodies)
{
	foreach my $format (qw(raw envelope cloudevents cloudevents-binary))
	{
		my $form = { format => $format, secrets => [ $private, $new ] };
		accepts('ed25519', request($form, $bodies{$type}), $public, "$type in $format");
		accepts($_, request($form, $bodies{$type}), $new, "$type in $format") foreach $format =~ /^(envelope|cloudevents)$/ ? qw(standardwebhooks svix) : ();
	}
	foreach my $form ({ format => 'cloudevents' }, { format => 'cloudevents', batch => JSON::PP::true })
	{
		my $events = accepts('cloudevents', request($form, $bodies{$type}), undef, "$type" . ($form->{batch} ? ' in a batch' : ''));
		is($events->[0]{datacontenttype}, $type, 'with its type');
		is($events->[0]{data_base64}, 'AP8KQQ==', 'with its bytes') if $type =~ /protobuf/;
		is($events->[0]{data}, $bodies{$type}{payload_text}, 'with its text') if $type =~ /xml/;
		is_deeply($events->[0]{data}, { b => 1, a => "\x{e4}" }, 'with its value') if $type =~ /json/;
	}
	my $events = accepts('cloudevents', request({ format => 'cloudevents-binary' }, $bodies{$type}), undef, "$type in binary mode");
	is($events->[0]{datacontenttype}, $type, 'with its type');
	is($events->[0]{data}, $bodies{$type}{payload_text}, 'with its text') if $type =~ /xml/;
}

$node->stop;
done_testing();
