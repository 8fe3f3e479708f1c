# doc/monitoring: every query of the dashboards and alerts is one that can be
# answered: by a database, as a monitor; from metrics and labels that
# outbox.metrics() has.  promtool goes through the alerts.
use strict;
use warnings;

use Cwd qw(realpath);
use File::Basename qw(dirname);
use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use PostgreSQL::Test::Utils qw(append_to_file slurp_file);
use Test::More;

my $folder = realpath(dirname(__FILE__) . '/../../doc/monitoring');
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');
$node->wait_for_dispatcher;
$node->sql('CREATE ROLE watcher LOGIN');
$node->sql("SELECT outbox.grant_monitor('watcher')");
$receiver->on('/h', { status => 200 }, { status => 500 });
$node->handler('h', ['h.*'], $receiver->url('/h'), max_attempts => 1);
$node->handler('p', ['p.*'], undef);
$node->stage('h.one');
$node->stage('h.two');
$node->stage('p.one');
$node->wait_for("SELECT attempts FROM outbox.stat_handlers WHERE handler = 'h'", 2, 'two are tried');

sub dashboard
{
	my $name = shift;
	my $dashboard = JSON::PP->new->utf8->decode(slurp_file("$folder/$name"));
	my %seen;
	is(join(' ', grep { $seen{$_}++ } map { $_->{id} } @{ $dashboard->{panels} }), '', "$name: panels have ids of their own");
	# None lies upon another: each square of the grid is taken once.
	my %taken;
	foreach my $panel (@{ $dashboard->{panels} })
	{
		my ($x, $y, $w, $h) = @{ $panel->{gridPos} }{qw(x y w h)};
		foreach my $row ($y .. $y + $h - 1) { $taken{"$_ $row"}++ foreach $x .. $x + $w - 1; }
		cmp_ok($x + $w, '<=', 24, "$name: $panel->{title}: within the page");
	}
	is(scalar(grep { $_ > 1 } values %taken), 0, "$name: no panel lies upon another");
	my ($input) = @{ $dashboard->{__inputs} };
	my @sources = map { ($_, @{ $_->{targets} }) } @{ $dashboard->{panels} };
	is(scalar(grep { $_->{datasource}{uid} ne "\${$input->{name}}" } @sources), 0, "$name: asks the source that is chosen when it is imported");
	is($dashboard->{schemaVersion}, 38, "$name: is of the oldest version that it is for, which others bring up to date");
	my %variable = map { $_ => 1 } qw(__rate_interval), map { $_->{name} } @{ $dashboard->{templating}{list} };
	is(join(' ', grep { !$variable{$_} } map { /\$\{?(\w+)/g } map { ($_->{expr} // (), $_->{rawSql} // (), $_->{legendFormat} // ()) } map { @{ $_->{targets} } } @{ $dashboard->{panels} }),
		'', "$name: asks by variables that it has");
	return $dashboard;
}

# --- PostgreSQL
foreach my $panel (@{ dashboard('grafana-postgresql.json')->{panels} })
{
	foreach my $target (@{ $panel->{targets} })
	{
		my ($status, $out, $error) = $node->psql('postgres', $target->{rawSql}, extra_params => [ '-U', 'watcher' ]);
		is($error, '', "$panel->{title}: a monitor may ask");
		isnt($out, '', "$panel->{title}: and is answered");
		# Overrides are of columns that there are.
		my $columns = $node->sql("CREATE TEMP VIEW asked AS $target->{rawSql}; SELECT string_agg(attname, '|' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'asked'::regclass AND attnum > 0");
		my %column = map { $_ => 1 } split /\|/, $columns;
		is(join(' ', grep { !$column{$_} } map { $_->{matcher}{options} } @{ $panel->{fieldConfig}{overrides} }), '', "$panel->{title}: formats columns that it has");
	}
}

# --- Prometheus
my $text = $node->sql('SELECT outbox.metrics()');
my %labels;
while ($text =~ /^(outbox_\w+)\{(.*)\} /mg)
{
	my ($metric, $pairs) = ($1, $2);
	$labels{$metric}{$_} = 1 foreach 'instance', 'job', $pairs =~ /(\w+)="/g;
}
my %class = map { $_ => 1 } $text =~ /class="(\w+)"/g;

sub may_ask
{
	my ($what, $expression) = @_;
	my %metric = map { $_ => 1 } $expression =~ /\b(outbox_\w+)/g;
	ok(scalar(keys %metric), "$what: asks for something");
	is(join(' ', grep { !$labels{$_} } keys %metric), '', "$what: for metrics that there are") or return;
	while ($expression =~ /\b(outbox_\w+)\{([^}]*)\}/g)
	{
		my ($metric, $pairs) = ($1, $2);
		is(join(' ', grep { !$labels{$metric}{$_} } $pairs =~ /(\w+)[!=]/g), '', "$what: by labels that they have");
		is(join(' ', grep { !$class{$_} } map { split /\|/ } $pairs =~ /\bclass!?=~?"([^"]*)"/g), '', "$what: classes that there are");
	}
	while ($expression =~ /\b(?:by|without|on) \(([^)]*)\)/g)
	{
		is(join(' ', grep { my $label = $_; !grep { $labels{$_}{$label} } keys %metric } split /, /, $1), '', "$what: gathered by labels that they have");
	}
}

my $prometheus = dashboard('grafana-prometheus.json');
my @expressions = map { my $panel = $_; map { [ $panel->{title}, $_->{expr} ] } @{ $panel->{targets} } } @{ $prometheus->{panels} };
may_ask(@$_) foreach @expressions;
may_ask("variable $_->{name}", $_->{query}{query} =~ s/^label_values\((.*), \w+\)$/$1/r) foreach @{ $prometheus->{templating}{list} };
my $alerts = slurp_file("$folder/alerts.yml");
my @alerts = $alerts =~ /- alert: (\w+)\n\s+expr: (\|\n(?:\s{6,}\S.*\n)+|.*\n)/g;
cmp_ok(scalar @alerts, '>=', 20, 'alerts are read');
while (my ($name, $expression) = splice @alerts, 0, 2)
{
	may_ask($name, $expression);
	like(slurp_file("$folder/alerts_test.yml"), qr/\b$name\b/, "$name: has a test");
	my ($rule) = $alerts =~ /alert: $name\n(.*?)(?=\n  - alert|\z)/s;
	like($rule, qr/severity: (?:critical|warning)\}/, "$name: has a severity");
}

# What they name to people is there: functions, views and their columns.
foreach my $name (do { my %seen; grep { !$seen{$_}++ } $alerts =~ /\boutbox\.([a-z_]+)/g })
{
	next if $name eq 'max_stat_handlers';
	is($node->sql("SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname = '$name') + (SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relname = '$name') > 0"), 't', "alerts name outbox.$name, which there is");
}

SKIP:
{
	skip 'no promtool', 3 unless grep { -x "$_/promtool" } split /:/, $ENV{PATH};
	my $said = qx(promtool check rules $folder/alerts.yml 2>&1);
	is($?, 0, 'promtool takes the alerts') or diag $said;
	$said = qx(promtool test rules $folder/alerts_test.yml 2>&1);
	is($?, 0, 'and they fire when they should') or diag $said;
	# As rules, the dashboard's queries are parsed, too.
	my $dir = PostgreSQL::Test::Utils::tempdir;
	my $n = 0;
	append_to_file("$dir/rules.yml", JSON::PP->new->encode({ groups => [ { name => 'dashboard', rules => [ map { { record => 'panel:' . $n++, expr => $_->[1] =~ s/\$__rate_interval/5m/gr } } @expressions ] } ] }));
	$said = qx(promtool check rules $dir/rules.yml 2>&1);
	is($?, 0, "promtool can read the dashboard's queries") or diag $said;
}

$node->stop;
done_testing;
