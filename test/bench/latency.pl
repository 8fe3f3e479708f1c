# Latency: from a commit that the client has been told of to the arrival of
# the request, one message at a time on an idle server, beside a bare
# keep-alive POST to the same receiver in the same run.
#
# Options: --messages=N (1000), --runs=N
use strict;
use warnings;

use OutboxBench;

my $messages = option('messages', 1000);
my $node = bench_cluster('latency');
my $record = $node->basedir . '/record';
open(my $create, '>', $record) or die $!;
close $create;
my $port = start_receiver('--record', $record);
$node->handler('bench', ['bench.*'], "http://127.0.0.1:$port/");

my %figures;
foreach (0 .. runs())
{
	my $run = latencies($node, $port, $record, $messages);
	next if $_ == 0;	# the first run warms up
	push @{ $figures{$_} }, $run->{$_} foreach keys %$run;
}
report('latency commit to receiver, p50', '%8d us, bare POST %d us, %d us above it', median(@{ $figures{p50} }), median(@{ $figures{bare50} }), median(@{ $figures{p50} }) - median(@{ $figures{bare50} }));
report('latency commit to receiver, p99', '%8d us, bare POST %d us, %d us above it', median(@{ $figures{p99} }), median(@{ $figures{bare99} }), median(@{ $figures{p99} }) - median(@{ $figures{bare99} }));
$node->stop;
