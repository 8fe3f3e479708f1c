# Checks requests with the libraries that receivers use: npm's
# standardwebhooks, svix and cloudevents (NpmInstall.pm).
#
#   my $verifiers = Verifiers->install or plan skip_all => Verifiers->missing;
#   my $answer = $verifiers->check('svix', $request, $secret);   # {ok} or {error}
package Verifiers;

use strict;
use warnings;

use IPC::Run qw(run);
use JSON::PP ();
use MIME::Base64 qw(encode_base64);
use NpmInstall qw(missing_program npm_install);

my $folder = 'test/lib/node';
my $json = JSON::PP->new->utf8->canonical->allow_nonref;

my $failed;

# Why the libraries cannot be had here, or nothing.
sub missing
{
	my $program = missing_program(qw(node npm));
	return "$program is not installed, so requests cannot be checked with the receivers' libraries" if $program;
	return $failed;
}

# Undef if they cannot be had: node or npm is missing, or no registry answers.
sub install
{
	my $class = shift;
	return if missing();
	my $why = npm_install($folder) // return bless {}, $class;
	$failed = "npm cannot install the receivers' libraries, so requests cannot be checked with them: $why";
	return;
}

# request has headers (hash) and body (bytes).
sub check
{
	my ($self, $check, $request, $secret) = @_;
	my $line = $json->encode(
		{ check => $check, secret => $secret, headers => $request->{headers}, body => encode_base64($request->{body}, '') });
	my ($out, $error);
	run [ 'node', "$folder/verify.js" ], '<', \"$line\n", '>', \$out, '2>', \$error or die "node failed:\n$error";
	return $json->decode($out);
}

1;
