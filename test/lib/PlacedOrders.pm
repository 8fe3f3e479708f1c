# What every recipe for staging has to do: place an order and stage its
# message in one transaction, say why it could not.  A driver program (in
# test/lib/recipes) calls the recipe with the same orders in every language.
package PlacedOrders;

use strict;
use warnings;

use IPC::Run;
use JSON::PP ();
use Test::More;

my $json = JSON::PP->new->allow_nonref;

# Run the driver program with a recipe, as the application's role.  in is the
# folder that it lies in; order_id how the recipe's language writes a bigint.
sub try
{
	my ($node, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($out, $error) = ('', '');
	$node->sql('TRUNCATE shop.orders, outbox.message');
	my %to = (PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => 'shop_app', %{ $options{env} || {} });
	IPC::Run::run($options{command}, '<', \undef, '>', \$out, '2>', \$error,
		init => sub { chdir $options{in}; @ENV{ keys %to } = values %to; }, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	is($error, '', "$name: no complaint");
	my %said = map { @$_ } map { eval { $json->decode($_) } || [ $_ => undef ] } split /\n/, $out;
	is($node->sql("SELECT string_agg(concat_ws(' ', o.id, o.customer, o.total, m.topic), ', ' ORDER BY o.id) FROM shop.orders o LEFT JOIN outbox.message m ON m.key = o.id::text"),
		'3 Ada 99.50 shop.order.placed, 9007199254740993 Ada 99.50 shop.order.placed', "$name: orders and messages of what was committed");
	is($node->sql('SELECT count(*) FROM outbox.message'), 2, "$name: and no message of what was not");
	is($said{placed}, $node->sql("SELECT id FROM outbox.message WHERE key = '9007199254740993'"), "$name: the id comes back");
	is($node->sql(qq[SELECT payload = '{"id": $options{order_id}, "customer": "Ada", "total": "99.50", "note": null, "receipt": "AP8="}'
		AND (moment::timestamptz) = 'epoch' FROM (SELECT payload - 'placed_at' - 'placedAt' AS payload, coalesce(payload ->> 'placed_at', payload ->> 'placedAt') AS moment
			FROM outbox.message WHERE key = '9007199254740993') m]), 't', "$name: bigint, decimal, date, bytes and null are what the page says");
	is($said{twice}[0], '23505', "$name: an error of the order's table, with its SQLSTATE");
	is($said{'too large'}[0], '54000', "$name: an error of outbox, with its SQLSTATE");
	like($said{'too large'}[1], qr/^Stage a reference to the data instead/, "$name: and its hint");
	ok($said{again}, "$name: the connection is good afterwards");
	return;
}

1;
