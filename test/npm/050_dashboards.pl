# doc/monitoring: the dashboards are what Grafana's own types say that a dashboard,
# its panels' options and their fields can be, from the oldest release that they
# are for to a recent one.  (What they ask: t/724.)
use strict;
use warnings;

use Cwd qw(realpath);
use IPC::Run;
use JSON::PP ();
use NpmLibraries;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $libraries = NpmLibraries->install or plan skip_all => NpmLibraries->missing;
my $root = realpath('doc/monitoring');
my $folder = PostgreSQL::Test::Utils::tempdir;
$libraries->lend($folder);
my $json = JSON::PP->new->canonical->pretty;

# Where the packages of two releases have their types.
my %release = (
	'10.4' => { package => 'grafana-schema-10', types => 'dist/index', panel => sub { "dist/esm/raw/composable/\L$_[0]\E/panelcfg/x/$_[0]PanelCfg_types.gen" } },
	'13.2' => { package => '@grafana/schema', types => 'dist/types/index', panel => sub { "dist/types/raw/composable/\L$_[0]\E/panelcfg/x/types.gen" } });
my %panel_types = (stat => 'Stat', table => 'Table', barchart => 'BarChart', timeseries => 'TimeSeries');

# A value of an enum is a string in JSON.  What a property must not be left out of when a
# panel is made in code, Grafana fills in when it is read.
my $types = <<'TS';
type Read<T> = unknown extends T ? T : T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
	: T extends Array<infer E> ? Read<E>[] : T extends object ? { [K in keyof T]: Read<T[K]> } : T;
type PanelOf<Options, Field> = Read<Omit<Panel, 'options' | 'fieldConfig' | 'targets'>> & {
	options: Read<Partial<Options>>;
	fieldConfig: { defaults: Read<Omit<FieldConfig, 'custom'>> & { custom?: Read<Partial<Field>> }; overrides: { matcher: Read<MatcherConfig>; properties: Property<Field>[] }[] };
	targets: object[];
};
type Property<Field> = { id: keyof Omit<FieldConfig, 'custom'> | `custom.${Extract<keyof Field, string>}`; value?: unknown };
type Page = Read<Omit<Dashboard, 'panels'>> & { __inputs: object[] };
TS

# What the compiler says of a dashboard; nothing if it is one.
sub complaint
{
	my ($version, $dashboard) = @_;
	my $at = $release{$version};
	my %page = %$dashboard;
	my $panels = delete $page{panels};
	my %type_of = map { $_->{type} => 1 } @$panels;
	my $text = "import type { Dashboard, FieldConfig, MatcherConfig, Panel } from '\@grafana/schema';\n";
	$text .= "import type * as $_ from './node_modules/$at->{package}/" . $at->{panel}->($panel_types{$_}) . "';\n" foreach sort keys %type_of;
	$text .= $types . 'export const page: Page = ' . $json->encode(\%page) . ";\n";
	my $n = 0;
	foreach my $panel (@$panels)
	{
		my $field = $panel->{type} eq 'stat' ? 'object' : "$panel->{type}.FieldConfig";
		$text .= 'export const panel' . $n++ . ": PanelOf<$panel->{type}.Options, $field> = " . $json->encode($panel) . ";\n";
	}
	write_file('dashboard.ts', $text);
	write_file('tsconfig.json', $json->encode({ files => ['dashboard.ts'], compilerOptions => {
		strict => JSON::PP::true, noEmit => JSON::PP::true, skipLibCheck => JSON::PP::true, module => 'esnext', moduleResolution => 'bundler', target => 'es2022', types => [],
		paths => { '@grafana/schema' => ["./node_modules/$at->{package}/$at->{types}"] } } }));
	my $said = '';
	IPC::Run::run([ 'node', 'node_modules/typescript/bin/tsc', '-p', '.' ], '<', \undef, '>&', \$said, init => sub { chdir $folder })
	  or $said ||= 'the compiler failed';
	return $said;
}

sub write_file
{
	my ($name, $text) = @_;
	open my $out, '>:utf8', "$folder/$name" or die "$folder/$name: $!";
	print $out $text;
	close $out;
	return;
}

sub read_dashboard
{
	return JSON::PP->new->utf8->decode(slurp_file("$root/grafana-$_[0].json"));
}

foreach my $version (sort keys %release)
{
	is(complaint($version, read_dashboard($_)), '', "$_: a dashboard of Grafana $version") foreach qw(postgresql prometheus);

	# What is none would be said, each in a declaration of its own.
	my $wrong = read_dashboard('prometheus');
	$wrong->{panels}[0]{options}{colourMode} = 'background';
	$wrong->{panels}[1]{fieldConfig}{defaults}{thresholds} = { mode => 'absolutely', steps => [] };
	$wrong->{panels}[2]{fieldConfig}{overrides} = [ { matcher => { id => 'byName', options => 'x' }, properties => [ { id => 'units', value => 's' } ] } ];
	delete $wrong->{schemaVersion};
	my $said = complaint($version, $wrong);
	like($said, qr/$_/, "$version: $_ is not taken") foreach qw(colourMode absolutely units schemaVersion);
}
done_testing;
