# With a synchronous standby a message is sent when its producer's commit is
# through: after the standby has it where the producer waits for that, and
# after a flush of this server where it does not (synchronous_commit local,
# off), or where its wait was cancelled.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

# The test's own sessions wait for no standby.
$ENV{PGOPTIONS} = '-c synchronous_commit=local';

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', init => { allows_streaming => 1 }, conf => <<'END');
outbox.rescan_interval = 500ms
synchronous_commit = on
END
$node->handler('all', ['t.*'], $receiver->url('/all'));
$node->backup('backup');
my $standby = OutboxCluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$node->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$node->reload;
$node->wait_for('SHOW synchronous_standby_names', '*', 'a standby is waited for, and there is none');

# Producers that wait for it.
my %waiting;
foreach my $name (qw(patient cancelled))
{
	my $out = '';
	my $handle = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', "SET application_name = '$name'; SET synchronous_commit = on", '-c', "SELECT outbox.stage('t.$name')" ],
		'<', \undef, '>', \$out, '2>', \my $error);
	$waiting{$name} = $handle;
}
$node->wait_for("SELECT string_agg(application_name, ' ' ORDER BY application_name) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", 'cancelled patient', 'two producers wait for it');

sub arrived
{
	return join ' ', sort map { $_->{headers}{'outbox-topic'} } $receiver->requests('/all');
}
$node->sql("SET synchronous_commit = $_; SELECT outbox.stage('t.$_')") foreach qw(local off);
$node->wait_while_not(sub { arrived() =~ /t\.local t\.off/ }, 'what waits for no standby is sent at once');
# A rescan has looked at everything since.
$node->sql('SELECT outbox_internal.ring_rescan()');
$node->sql("SELECT outbox.stage('t.local')");
$node->wait_while_not(sub { arrived() =~ /t\.local t\.local t\.off/ }, 'and again');
is(arrived(), 't.local t.local t.off', 'what waits is not sent meanwhile');
$node->sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'cancelled'");
$node->wait_while_not(sub { arrived() eq 't.cancelled t.local t.local t.off' }, 'it is when its wait is cancelled, which commits it');
$standby->start;
$node->wait_while_not(sub { arrived() eq 't.cancelled t.local t.local t.off t.patient' }, 'and when the standby has it');
$_->finish foreach values %waiting;

unlike($node->log_text, qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
done_testing();
