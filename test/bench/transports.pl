# Transports: requests a second through each transport on its own, beside a
# bare libcurl multi loop with the same bodies, headers and concurrency.  No
# server and no database: this is what bounds a push lane.
#
# Options: --requests=N (100000), --concurrency=N,N (10,50,100), --runs=N
use strict;
use warnings;

use OutboxBench;

my $requests = option('requests', 100_000);
my $bytes = 200;
my @transports = qw(curl fast);
my $port = start_receiver();

foreach my $concurrency (split /,/, option('concurrency', '10,50,100'))
{
	my (%rate, @loop);
	foreach (1 .. runs())
	{
		push @loop, curl_rate($port, $requests, $concurrency, $bytes);
		push @{ $rate{$_} }, transport_rate($_, $port, $requests, $concurrency, $bytes) foreach @transports;
	}
	report("transports, concurrency $concurrency, bare libcurl loop", '%8d requests/s', median(@loop));
	report("transports, concurrency $concurrency, $_", '%8d requests/s, %.2f of the loop', median(@{ $rate{$_} }), ratio($rate{$_}, \@loop)) foreach @transports;
}
