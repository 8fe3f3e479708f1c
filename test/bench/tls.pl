# TLS: requests a second over kept connections, HTTP/1.1 and HTTP/2, through
# the transports on their own and in drains, beside a bare libcurl multi loop
# with the same bodies, headers and concurrency; and what a new connection
# costs.  The receiver is nginx.
#
# Processor time is that of the sending process for one request: where the
# receiver, which takes more, shares the machine, it says more than the rate.
#
# Options: --requests=N (30000), --concurrency=N,N (10,50,100), --runs=N,
# --versions=11,20, --connections=N (new ones, 1000), --drain=0 (no drains)
use strict;
use warnings;

use NginxReceiver;
use OutboxBench;

if (my $missing = NginxReceiver->missing)
{
	print "tls: $missing\n";
	exit 0;
}
my $requests = option('requests', 30_000);
my $connections = option('connections', 1000);
my $bytes = 200;
my %name = (11 => 'HTTP/1.1', 20 => 'HTTP/2');
my $nginx = NginxReceiver->start;
my $trust = '--ca-file ' . $nginx->ca_file;
my $node = option('drain', 1) ? bench_cluster('tls') : undef;
$node->handler('bench', ['bench.*'], $nginx->url('tls'), tls_ca_file => $nginx->ca_file) if $node;

sub figures { my ($key, $figures) = @_; return map { $_->{$key} } @$figures; }

# A line of rates and one of processor time, beside the loop's.
sub compare
{
	my ($what, $figures, $loop) = @_;
	my @rates = ([ figures('rate', $figures) ], [ figures('rate', $loop) ]);
	my @times = ([ figures('cpu_us', $figures) ], [ figures('cpu_us', $loop) ]);
	report($what, '%8d requests/s, %.2f of the loop; %.1f us of processor time, %.2f of the loop',
		median(@{ $rates[0] }), ratio(@rates), median(@{ $times[0] }), ratio(@times));
	return;
}

sub drained
{
	my ($version) = @_;
	$node->sql("SELECT outbox.alter_handler('bench', http_version => '" . ($version == 20 ? '2' : '1.1') . "')");
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
	$node->restart;
	backlog($node, 'bench.message.sent', $requests, $bytes);
	return drain_figures($node, $requests);
}

foreach my $version (split /,/, option('versions', '11,20'))
{
	my @transports = $version == 11 ? qw(curl fast) : qw(curl);
	foreach my $concurrency (split /,/, option('concurrency', '10,50,100'))
	{
		my @load = ($nginx->url('tls'), $requests, $concurrency, $bytes, "$trust --http-version $version");
		my (@loop, %of, @drain);
		$node->sql("SELECT outbox.alter_handler('bench', concurrency => $concurrency)") if $node;
		foreach (1 .. runs())
		{
			push @loop, load_figures('curl_loop', @load);
			push @{ $of{$_} }, load_figures("transport_loop --transport $_", @load) foreach @transports;
			push @drain, drained($version) if $node;
		}
		my $what = "tls, $name{$version}, concurrency $concurrency";
		compare("$what, bare libcurl loop", \@loop, \@loop);
		compare("$what, transport $_ alone", $of{$_}, \@loop) foreach @transports;
		compare("$what, drain", \@drain, \@loop) if $node;
	}
}

# New connections, one at a time: with one authority to read, and refused by
# us for want of it among the system's.
my %kinds = (
	'a file of one authority' => [ $nginx->url('closing'), $trust ],
	q{the system's authorities} => [ $nginx->url('stranger'), '', 1 ]);
foreach my $kind (sort keys %kinds)
{
	my ($url, $options, $fails) = @{ $kinds{$kind} };
	my @load = ($url, $connections, 1, $bytes, "$options 2>/dev/null", $fails);
	my (@loop, %of);
	foreach (1 .. runs())
	{
		push @loop, load_figures('curl_loop', @load);
		push @{ $of{$_} }, load_figures("transport_loop --transport $_", @load) foreach qw(curl fast);
	}
	compare("tls, new connections, $kind, bare libcurl loop", \@loop, \@loop);
	compare("tls, new connections, $kind, transport $_", $of{$_}, \@loop) foreach qw(curl fast);
}
$node->stop if $node;
