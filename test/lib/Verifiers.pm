# Checks requests with the libraries that receivers use: npm's
# standardwebhooks, svix and cloudevents, installed on first use into the tree
# that the test runs in.
#
#   my $verifiers = Verifiers->install or plan skip_all => Verifiers->missing;
#   my $answer = $verifiers->check('svix', $request, $secret);   # {ok} or {error}
package Verifiers;

use strict;
use warnings;

use Fcntl qw(LOCK_EX);
use IPC::Run qw(run);
use JSON::PP ();
use MIME::Base64 qw(encode_base64);

my $folder = 'test/lib/node';
my $json = JSON::PP->new->utf8->canonical->allow_nonref;

my $failed;

# Why the libraries cannot be had here, or nothing.
sub missing
{
	foreach my $program (qw(node npm))
	{
		return "$program is not installed, so requests cannot be checked with the receivers' libraries"
		  unless grep { -x "$_/$program" } split /:/, $ENV{PATH};
	}
	return $failed;
}

# Undef if they cannot be had: node or npm is missing, or no registry answers.
# One test installs them, others that run beside it wait.
sub install
{
	my $class = shift;
	return if missing();
	open(my $lock, '>', "$folder/.lock") or die "cannot lock $folder: $!";
	flock($lock, LOCK_EX) or die "cannot lock $folder: $!";
	my $output = '';
	return bless {}, $class if -e "$folder/.installed";
	if (!run [ 'npm', 'install', '--prefix', $folder, '--no-audit', '--no-fund', '--no-package-lock', '--ignore-scripts' ],
		'<', \undef, '>&', \$output)
	{
		$failed = "npm cannot install the receivers' libraries, so requests cannot be checked with them: " . (split /\n/, $output)[0];
		return;
	}
	open(my $mark, '>', "$folder/.installed") or die "$folder: $!";
	return bless {}, $class;
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
