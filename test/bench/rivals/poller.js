// A poller as one writes it by hand: claims up to 500 rows with SKIP LOCKED,
// does them, says so in one statement; asks again after 100 ms where there was
// nothing.  A row that fails is due again later.
'use strict';

const { Client } = require('pg');
const { work, ready, database } = require('./work');

(async () => {
	const client = new Client({ connectionString: database });
	await client.connect();
	ready();
	for (;;) {
		const { rows } = await client.query({ name: 'claim', text: `UPDATE job SET state = 2, attempts = attempts + 1, locked_until = clock_timestamp() + interval '5 minutes'
			WHERE id IN (SELECT id FROM job WHERE state = 0 AND run_at <= clock_timestamp() ORDER BY run_at FOR UPDATE SKIP LOCKED LIMIT 500)
			RETURNING id, payload` });
		if (rows.length === 0) {
			await new Promise(resolve => setTimeout(resolve, 100));
			continue;
		}
		const done = [], failed = [];
		await Promise.all(rows.map(row => work(row.id, row.payload).then(() => done.push(row.id), () => failed.push(row.id))));
		await client.query({ name: 'done', text: 'UPDATE job SET state = 3, locked_until = NULL WHERE id = ANY ($1)', values: [done] });
		if (failed.length > 0) {
			await client.query("UPDATE job SET state = 0, run_at = clock_timestamp() + interval '2 s' * 2 ^ attempts WHERE id = ANY ($1)", [failed]);
		}
	}
})();
