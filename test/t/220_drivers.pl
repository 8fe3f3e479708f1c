# "From your driver": what doc/producers.md shows for each driver stages the
# message, and what it warns of fails as it says.  Drivers that are not there
# are skipped by name.
use strict;
use warnings;

use File::Basename qw(dirname);
use IPC::Run;
use OutboxCluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $node = OutboxCluster->create('main');
my $folder = $node->basedir . '/drivers';
mkdir $folder or die "$folder: $!";
my $page = slurp_file(dirname(__FILE__) . '/../../doc/producers.md');
my %shown = $page =~ /^### (.*?)\n(?:(?!^#).)*?^```\w+\n(.*?)^```$/msg;
my ($python) = grep { system("$_ -c 'import psycopg' > /dev/null 2>&1") == 0 } '/usr/bin/python3', 'python3';
$python //= 'python3';

# What surrounds the statements of each driver, and what else is tried: the
# name of the message's topic or the error that it ends with.
my $python_end = <<'END';
except Exception as e:
    print(getattr(e, 'sqlstate', None) or getattr(e, 'pgcode', None) or type(e).__name__, e)
END
my $async = "import asyncio\nasync def main():\n%s\nasyncio.run(main())\n";
my $conninfo = sprintf 'host=%s port=%s dbname=postgres user=%s', $node->host, $node->port, scalar getpwuid $>;
my $url = sprintf 'postgresql://%s@/postgres?host=%s&port=%s', scalar(getpwuid $>), $node->host, $node->port;
my %driver = (
	'psycopg 3' => {
		bytes => q{connection.execute('SELECT outbox.stage_bytes(%s, %s, %s)', ('shop.order.placed', b'\x00\xff', 'image/png'))},
		command => $python, file => 'psycopg3.py', has => "$python -c 'import psycopg'",
		around => "import psycopg\nfrom psycopg.types.json import Jsonb\nconnection = psycopg.connect('$conninfo', autocommit=True)\ntry:\n    %s$python_end",
		indent => '    ',
		fails => { q{connection.execute('SELECT outbox.stage(%s, %s, key => %s)', ('shop.order.placed', '{"order": 17}', 17))} => qr/^42883 / },
		works => { q{connection.execute('SELECT outbox.stage(%s, %s, key => %s)', ('shop.order.placed', '{"order": 17}', '17'))} => 1 }
	},
	'psycopg2' => {
		bytes => q{cursor.execute('SELECT outbox.stage_bytes(%s, %s, %s)', ('shop.order.placed', b'\x00\xff', 'image/png'))},
		command => $python, file => 'psycopg2_.py', has => "$python -c 'import psycopg2'",
		around => "import psycopg2\nfrom psycopg2.extras import Json\nconnection = psycopg2.connect('$conninfo')\nconnection.autocommit = True\ncursor = connection.cursor()\ntry:\n    %s$python_end",
		indent => '    ',
		fails => { q{cursor.execute('SELECT outbox.stage(%s, %s, key => %s)', ('shop.order.placed', '{"order": 17}', 17))} => qr/^42883 / },
		works => { q{cursor.execute('SELECT outbox.stage(%s, %s, key => %s)', ('shop.order.placed', '{"order": 17}', '17'))} => 1 }
	},
	'asyncpg' => {
		bytes => q{await connection.execute('SELECT outbox.stage_bytes($1, $2, $3)', 'shop.order.placed', b'\x00\xff', 'image/png')},
		command => $python, file => 'asyncpg_.py', has => "$python -c 'import asyncpg'",
		around => sprintf($async, "    import asyncpg, json\n    connection = await asyncpg.connect('$url')\n    try:\n        %s" . $python_end =~ s/^/    /gmr . '    await connection.close()'),
		indent => '        ',
		fails => { q{await connection.execute('SELECT outbox.stage($1, $2, key => $3)', 'shop.order.placed', '{}', 17)} => qr/DataError|22000/ }
	},
	'SQLAlchemy' => {
		bytes => q{await connection.execute(select(func.outbox.stage_bytes('shop.order.placed', b'\x00\xff', 'image/png')))},
		command => $python, file => 'sqlalchemy_.py', has => "$python -c 'import asyncpg, greenlet, sqlalchemy.ext.asyncio'",
		around => sprintf($async,
			"    from sqlalchemy import cast, func, select\n    from sqlalchemy.dialects.postgresql import JSONB\n    from sqlalchemy.ext.asyncio import create_async_engine\n"
			  . "    engine = create_async_engine('@{[ $url =~ s/^postgresql:/postgresql+asyncpg:/r ]}')\n    try:\n        async with engine.begin() as connection:\n            %s"
			  . $python_end =~ s/^/    /gmr . '    await engine.dispose()'),
		indent => '            ',
		fails => { q{await connection.execute(select(func.outbox.stage('shop.order.placed', '{"order": 17}')))} => qr/function outbox\.stage\(.*\) does not exist/ }
	},
	'JDBC' => {
		bytes => jdbc('SELECT outbox.stage_bytes(?, ?, ?)', 'setBytes(2, new byte[] {0, (byte) 255}); s.setString(3, "image/png"); s.execute()'),
		command => 'java', file => 'Stage.java', has => 'test -e /usr/share/java/postgresql.jar && java --list-modules | grep -q jdk.compiler',
		options => [ '-cp', '/usr/share/java/postgresql.jar' ],
		around => "import java.sql.*;\npublic class Stage\n{\n\tpublic static void main(String[] given) throws Exception\n\t{\n\t\t"
		  . "try (Connection connection = DriverManager.getConnection(\"jdbc:postgresql://127.0.0.1:" . $node->port . "/postgres?user=@{[ scalar getpwuid $> ]}\"))\n\t\t{\n%s\t\t}\n"
		  . "\t\tcatch (SQLException e)\n\t\t{\n\t\t\tSystem.out.println(e.getSQLState() + \" \" + e.getMessage());\n\t\t}\n\t}\n}\n",
		indent => '',
		fails => {
			jdbc('SELECT outbox.stage(?, ?)', 'setString(2, "{}"); s.execute()') => qr/^42883 .*function outbox\.stage\(character varying, character varying\) does not exist/,
			jdbc('SELECT outbox.stage(?, key => ?)', 'setInt(2, 17); s.execute()') => qr/^42883 /,
			jdbc('SELECT outbox.stage(?, ?::jsonb)', 'setString(2, "{}"); s.executeUpdate()') => qr/A result was returned when none was expected/
		}
	},
	'node-postgres' => {
		bytes => q{await client.query('SELECT outbox.stage_bytes($1, $2, $3)', ['shop.order.placed', Buffer.from([0, 255]), 'image/png']);},
		command => 'node', file => 'pg.js', npm => 'pg',
		around => "const { Client } = require('pg');\n(async () => {\n\tconst client = new Client({ host: '@{[ $node->host ]}', port: @{[ $node->port ]}, database: 'postgres', user: '@{[ scalar getpwuid $> ]}' });\n\tawait client.connect();\n"
		  . "\ttry { %s }\n\tcatch (e) { console.log(e.code, e.message); }\n\tawait client.end();\n})();\n",
		indent => '',
		works => { q{await client.query('SELECT outbox.stage($1, $2, key => $3)', ['shop.order.placed', '{"order": 17}', '17']);} => 1 },
		fails => {}
	},
	'postgres.js' => {
		bytes => q{await sql`SELECT outbox.stage_bytes(${'shop.order.placed'}, ${Buffer.from([0, 255])}, ${'image/png'})`;},
		command => 'node', file => 'postgres.js', npm => 'postgres',
		around => "const sql = require('postgres')({ host: '@{[ $node->host ]}', port: @{[ $node->port ]}, database: 'postgres', user: '@{[ scalar getpwuid $> ]}' });\n(async () => {\n"
		  . "\ttry { %s }\n\tcatch (e) { console.log(e.code, e.message); }\n\tawait sql.end();\n})();\n",
		indent => '',
		works => { q{await sql`SELECT outbox.stage(${'shop.order.placed'}, ${JSON.stringify({ order: 17 })}, key => ${'17'})`;} => 'string' },
		fails => {}
	});

sub jdbc
{
	my ($statement, $rest) = @_;
	return qq{\t\t\tPreparedStatement s = connection.prepareStatement("$statement");\n\t\t\ts.setString(1, "shop.order.placed");\n\t\t\ts.$rest;\n};
}

sub run_statements
{
	my ($driver, $statements) = @_;
	my $file = "$folder/$driver->{file}";
	chomp $statements;
	open my $out, '>', $file or die "$file: $!";
	printf $out $driver->{around}, $statements =~ s/\n/\n$driver->{indent}/gr . "\n";
	close $out;
	my $told = '';
	IPC::Run::run([ $driver->{command}, @{ $driver->{options} || [] }, $file ], '>', \$told, '2>&1', init => sub { chdir $folder });
	return $told;
}

# Is the driver there, or to be had?
sub missing
{
	my $driver = shift;
	return system("($driver->{has}) > /dev/null 2>&1") != 0 unless defined $driver->{npm};
	return 1 if system('node --version > /dev/null 2>&1') != 0;
	local $ENV{NODE_PATH} = '/usr/share/nodejs';
	return 0 if system(qq(cd "$folder" && node -e "require('$driver->{npm}')" > /dev/null 2>&1)) == 0;
	return system(qq(cd "$folder" && npm install --no-audit --no-fund $driver->{npm} > npm.log 2>&1)) != 0;
}

is(join(', ', sort keys %shown), join(', ', sort keys %driver), 'doc/producers.md shows a call for each driver that is tried');
$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'");
$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
$node->restart;
foreach my $name (sort keys %driver)
{
	my $driver = $driver{$name};
	SKIP:
	{
		skip "$name is neither installed nor to be had", 1 if missing($driver);
		foreach my $statements ($shown{$name}, sort keys %{ $driver->{works} || {} })
		{
			my $kind = $statements eq $shown{$name} ? 1 : $driver->{works}{$statements};
			$node->sql('TRUNCATE outbox.message');
			my $told = run_statements($driver, $statements);
			is($told, '', "$name: no complaint");
			is($node->sql("SELECT string_agg(concat_ws(' ', topic, key, CASE jsonb_typeof(payload) WHEN 'object' THEN payload ->> 'order' ELSE jsonb_typeof(payload) END), ', ') FROM outbox.message"),
				'shop.order.placed 17 ' . ($kind eq 'string' ? 'string' : '17'), "$name: staged " . $statements =~ s/\s+/ /gr);
		}
		$node->sql('TRUNCATE outbox.message');
		is(run_statements($driver, $driver->{bytes}), '', "$name: no complaint of bytes");
		is($node->sql("SELECT string_agg(concat_ws(' ', topic, payload, content_type, payload_bytes), ', ') FROM outbox.message"), 'shop.order.placed image/png \\x00ff', "$name: staged " . $driver->{bytes} =~ s/\s+/ /gr);
		like(run_statements($driver, $_), $driver->{fails}{$_}, "$name: refused " . s/\s+/ /gr) foreach sort keys %{ $driver->{fails} };
	}
}

done_testing();
