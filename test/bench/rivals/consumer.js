// A consumer of outbox in the place of the others' workers: claims up to 500
// messages, does them, completes them in one statement, and waits where there was
// nothing.
'use strict';

const { Client } = require('pg');
const { work, ready, database } = require('./work');

(async () => {
	const client = new Client({ connectionString: database });
	await client.connect();
	ready();
	for (;;) {
		const { rows } = await client.query({ name: 'claim', text: "SELECT id, attempt, payload FROM outbox.claim('pull', 500)" });
		if (rows.length === 0) {
			await client.query("CALL outbox.wait('pull', '10 s')");
			continue;
		}
		await Promise.all(rows.map(row => work(row.id, row.payload)));
		await client.query({ name: 'done', text: "SELECT outbox.complete_many('pull', $1, $2)", values: [rows.map(row => row.id), rows.map(row => row.attempt)] });
	}
})();
