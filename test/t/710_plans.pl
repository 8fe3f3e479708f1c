# What operators and monitors ask, whatever the planner believes of the tables:
# the pages that are touched grow with what is returned or changed, not with what
# is kept; and what monitors ask looks at some when there are many.  Counted by EXPLAIN (ANALYZE, BUFFERS), in sessions without any planner
# setting.  long/010_plans.pl does the same with millions of rows.
use strict;
use warnings;

use LargeOutbox;
use OutboxCluster;
use Test::More;

my ($settled, $each, $handlers) = (10_000, 150, 100);
my $node = OutboxCluster->create('main', conf => "outbox.enabled = off\nautovacuum = off\nfsync = off");
LargeOutbox::handlers($node, $handlers);

# Names and queries; :id, :tenant and so on are of one dead letter, :o of an outstanding one.  And how many pages may be
# touched for each that is dead or outstanding, where that is more than one.
my @asked = (
	[ 'health' => 'SELECT * FROM outbox.health()' ],
	[ 'backlog' => 'SELECT * FROM outbox.backlog' ],
	[ 'backlog of a handler' => "SELECT * FROM outbox.backlog WHERE handler = 'h3'" ],
	[ 'newest dead letters' => 'SELECT * FROM outbox.dead_letters ORDER BY died_at DESC LIMIT 20', 10 ],
	[ 'dead letters of a handler' => "SELECT * FROM outbox.dead_letters WHERE handler = 'h3'" ],
	[ 'how many are dead' => 'SELECT count(*) FROM outbox.dead_letters' ],
	[ 'a delivery' => "SELECT * FROM outbox.deliveries WHERE message_id = ':id'" ],
	[ 'dead deliveries of a handler' => "SELECT * FROM outbox.deliveries WHERE state = 'dead' AND handler = 'h3'" ],
	[ 'cancelled ones' => "SELECT * FROM outbox.deliveries WHERE state = 'cancelled' AND handler = 'h3'" ],
	[ 'outstanding ones of a handler' => "SELECT * FROM outbox.deliveries WHERE state IN ('pending', 'retrying', 'leased') AND handler = 'paused' LIMIT 20" ],
	[ 'deliveries of a key' => "SELECT * FROM outbox.deliveries WHERE key = ':key'" ],
	[ 'deliveries of a correlation id' => "SELECT * FROM outbox.deliveries WHERE correlation_id = ':correlation'" ],
	[ 'outstanding ones of a tenant' => "SELECT * FROM outbox.deliveries WHERE state IN ('pending', 'retrying', 'leased') AND tenant = ':o_tenant'", 3 ],
	[ 'dead letters of a tenant' => "SELECT * FROM outbox.dead_letters WHERE tenant = ':tenant'", 0 ],
	[ 'dead letters of a key' => "SELECT * FROM outbox.dead_letters WHERE key = ':key'", 0 ],
	[ 'dead letters of a correlation id' => "SELECT * FROM outbox.dead_letters WHERE correlation_id = ':correlation'", 0 ],
	[ 'a message' => "SELECT * FROM outbox.messages WHERE message_id = ':id'" ],
	[ 'messages of a tenant' => "SELECT * FROM outbox.messages WHERE tenant = ':tenant'" ],
	[ 'messages of a key' => "SELECT * FROM outbox.messages WHERE key = ':key'" ],
	[ 'messages of a correlation id' => "SELECT * FROM outbox.messages WHERE correlation_id = ':correlation'" ],
	[ 'attempts' => "SELECT * FROM outbox.attempts WHERE message_id = ':id'" ],
	[ 'handler_stats' => 'SELECT * FROM outbox.handler_stats' ],
	[ 'blocked_keys' => 'SELECT * FROM outbox.blocked_keys' ],
	[ 'status' => "SELECT * FROM outbox.status(':id')" ],
	[ 'message, a dead one' => "SELECT * FROM outbox.message(':id')" ],
	[ 'message, an outstanding one' => "SELECT * FROM outbox.message(':o')" ],
	[ 'report' => 'SELECT outbox.report()', 7 ],
	[ 'handlers_of' => "SELECT * FROM outbox.handlers_of('large.h3')" ],
	[ 'find_deliveries' => 'SELECT * FROM outbox.find_deliveries()' ],
	[ 'find_deliveries, dead of a tenant' => "SELECT * FROM outbox.find_deliveries(state => 'dead', tenant => ':tenant')" ],
	[ 'find_deliveries, outstanding of a tenant' => "SELECT * FROM outbox.find_deliveries(state => 'outstanding', tenant => ':o_tenant')" ],
	[ 'find_deliveries, of a tenant' => "SELECT * FROM outbox.find_deliveries(tenant => ':tenant', max_rows => 10)" ],
	[ 'find_deliveries, of a key' => "SELECT * FROM outbox.find_deliveries(key => ':key')" ],
	[ 'find_deliveries, of a correlation id' => "SELECT * FROM outbox.find_deliveries(correlation_id => ':correlation')" ],
	[ 'find_deliveries, outstanding' => "SELECT * FROM outbox.find_deliveries(state => 'outstanding')" ],
	[ 'find_deliveries, dead of a handler' => "SELECT * FROM outbox.find_deliveries('h3', 'dead')" ],
	[ 'find_deliveries, cancelled of a handler' => "SELECT * FROM outbox.find_deliveries('h3', 'cancelled')" ],
	[ 'requeue' => "SELECT outbox.requeue(':id')" ],
	[ 'cancel' => "SELECT outbox.cancel(':o')" ],
	[ 'cancel of a dead one' => "SELECT outbox.cancel(':id')" ],
	[ 'retry_now' => "SELECT outbox.retry_now(':o')" ],
	[ 'requeue_where' => "SELECT outbox.requeue_where(handler => 'h3', max_rows => 5)" ],
	[ 'requeue_where, any handler' => "SELECT outbox.requeue_where(since => '-infinity', max_rows => 20)" ],
	[ 'requeue_where, counted' => "SELECT outbox.requeue_where(code => '500', dry_run => true)" ],
	[ 'cancel_where' => "SELECT outbox.cancel_where(handler => 'paused', max_rows => 20)" ],
	[ 'cancel_where, nothing there' => "SELECT outbox.cancel_where(handler => 'h3')" ],
	[ 'erase_message' => "SELECT * FROM outbox.erase_message(':id')" ],
	[ 'erase_tenant' => "SELECT * FROM outbox.erase_tenant(':tenant', 5)" ],
	[ 'erase_key' => "SELECT * FROM outbox.erase_key(':key', max_messages => 5)" ],
	[ 'stage with a dedupe_key' => "SELECT outbox.stage('large.h3', dedupe_key => 'd')" ],
	[ 'accept' => "SELECT outbox.accept('s', 'm')" ]);

# What monitors ask, which looks at some when there are many, and how many pages it may touch then.
my @monitored = (
	[ 'health' => 'SELECT * FROM outbox.health()', 9000 ],
	[ 'backlog' => 'SELECT * FROM outbox.backlog', 8000 ],
	[ 'metrics' => 'SELECT outbox.metrics()', 9000 ]);

sub asked_of
{
	my $query = shift;
	my %value;
	@value{qw(id tenant key correlation)} = split /\|/, $node->sql(
		'SELECT m.id, m.tenant, m.key, m.correlation_id FROM outbox.receipt r JOIN outbox.message m ON m.id = r.message_id WHERE r.state = 4 ORDER BY 1 LIMIT 1');
	@value{qw(o o_tenant)} = split /\|/, $node->sql(
		'SELECT m.id, m.tenant FROM outbox.delivery d JOIN outbox.message m ON m.id = d.message_id WHERE d.state = 1 ORDER BY 1 LIMIT 1');
	return [ map { [ $_->[0], $_->[1] =~ s/:(\w+)/$value{$1} \/\/ ":$1"/egr, $_->[2] // 1 ] } @$query ];
}

foreach my $belief (grep { !/not vacuumed/ } @LargeOutbox::beliefs)
{
	LargeOutbox::believe($node, $belief);
	LargeOutbox::fill($node, settled => $settled, each => $each, days => 20);
	LargeOutbox::believe($node, $belief, 1);
	my $asked = asked_of(\@asked);
	my %before = map { $_->[0] => LargeOutbox::buffers($node, $_->[1]) } @$asked;
	# Three times as many that are settled, older and younger ones.
	LargeOutbox::fill($node, settled => $settled, each => 0, days => 30);
	LargeOutbox::fill($node, settled => $settled, each => 0, days => 10);
	LargeOutbox::believe($node, $belief, 1);
	my $kept = $node->sql("SELECT sum(pg_relation_size(c) / 8192) FROM unnest('{outbox.message,outbox.receipt}'::regclass[]) c");
	foreach my $query (@$asked)
	{
		my ($name, $sql, $of_each) = @$query;
		my $pages = LargeOutbox::buffers($node, $sql);
		# By what the message says of itself the planner has to know its columns; outbox.messages and find_deliveries() need no luck.
		next if $name =~ /^(?:deliveries|outstanding ones|dead letters) of a (?:key|correlation id|tenant)$/ && $belief =~ /empty|none/;
		# What is asked of a tenant or a key returns three times as much; all the dead may have to be looked at.
		my $limit = $before{$name} * ($name =~ /(?:tenant|key)$/ ? 3 : 1) * 1.25 + 60 + $of_each * $each;
		cmp_ok($pages, '<=', $limit, sprintf '%s: %s touches no more pages for what is kept (%d, %d before, %d kept)', $belief, $name, $pages, $before{$name}, $kept);
	}
	# What monitors ask, beside very many that are dead and outstanding.
	LargeOutbox::fill($node, settled => 2000, each => 25_000, days => 5);
	LargeOutbox::believe($node, $belief, 1);
	foreach my $query (@monitored)
	{
		my ($name, $sql, $limit) = @$query;
		my $pages = LargeOutbox::buffers($node, $sql);
		cmp_ok($pages, '<=', $limit, sprintf '%s: %s looks at some of the dead and outstanding (%d pages)', $belief, $name, $pages);
	}
}

done_testing();
