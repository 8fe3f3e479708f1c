// Called by PlacedOrders.pm with the path of a recipe: one line of JSON for each order.
const recipe = require(process.argv[2]);
const order = (more) => ({
	id: 9007199254740993n, customer: 'Ada', total: '99.50', placedAt: new Date(0), note: null, receipt: Buffer.from([0, 255]), left: undefined, ...more
});

async function attempt(what, given) {
	let said;
	try {
		said = await recipe.placeOrder(given);
	} catch (error) {
		const { sqlstate, hint } = recipe.reasonOf(error);
		said = [sqlstate ?? String(error), hint];
	}
	console.log(JSON.stringify([what, said]));
}

(async () => {
	await attempt('placed', order());
	await attempt('twice', order());
	await attempt('too large', order({ id: 2n, customer: 'x'.repeat(300000) }));
	await attempt('again', order({ id: 3n }));
	await recipe.close();
})();
