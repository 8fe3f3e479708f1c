# Retention: what prune() costs a drain that goes on beside it, and how fast
# it removes delivered messages.
#
# Options: --messages=N (200000), --old=N (200000), --runs=N
use strict;
use warnings;

use OutboxBench;

my $messages = option('messages', 200_000);
my $old = option('old', 200_000);
my $node = bench_cluster('prune', conf => "outbox.delivered_retention = '1 h'");
my $port = start_receiver();
$node->handler('bench', ['bench.*'], "http://127.0.0.1:$port/", concurrency => 50);

my (@alone, @beside, @pruned);
foreach (1 .. runs())
{
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
	backlog($node, 'bench.message.sent', $messages, 200);
	push @alone, drain_rate($node);

	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
	fill_settled($node, 'bench', $old);
	backlog($node, 'bench.message.sent', $messages, 200);
	my $script = $node->basedir . '/prune.sql';
	open(my $out, '>', $script) or die $!;
	# 10,000 messages a second: a thousand at a time, which takes a few ms.
	print $out "SELECT * FROM outbox.prune(1000);\n\\sleep 85 ms\n";
	close $out;
	my $seconds = int($old / 10_000);
	my $pid = fork // die $!;
	if ($pid == 0)
	{
		open(STDOUT, '>', '/dev/null');
		exec 'pgbench', '-n', '-c', 1, '-T', $seconds, '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres';
	}
	push @beside, drain_rate($node);
	waitpid $pid, 0;
	push @pruned, ($old - $node->sql("SELECT count(*) FROM outbox.message WHERE payload ? 'old'")) / $seconds;
}
report('drain beside prune()', '%8d deliveries/s, %.2f of without', median(@beside), ratio(\@beside, \@alone));
report('prune() meanwhile', '%8d messages/s', median(@pruned));
$node->stop;
