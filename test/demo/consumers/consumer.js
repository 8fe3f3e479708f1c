// A consumer of a pull handler, with node-postgres: node consumer.js <handler>
//
// Where the database is, libpq's variables say (PGHOST, PGDATABASE, ...).
// Ends when it is told to (SIGTERM, SIGINT), or with --once when nothing is
// left to claim.
//
// The work here is a row in the table ledger.  It commits together with the
// receipt of its message or not at all, so each message is entered exactly
// once, however often consumers die.
'use strict';

const { Client } = require('pg');

const handler = process.argv[2];
const once = process.argv.includes('--once');
if (!handler) {
	console.error('usage: node consumer.js <handler> [--once]');
	process.exit(2);
}

let stopping = false;
for (const signal of ['SIGINT', 'SIGTERM']) {
	process.on(signal, () => { stopping = true; });
}

// What the business does with a message.  An error means: not now.
async function work(db, message) {
	const { account, amount } = message.payload;
	if (typeof amount !== 'number') {
		throw Object.assign(new Error('amount is not a number'), { hopeless: true });
	}
	await db.query('INSERT INTO ledger (message_id, account, amount) VALUES ($1, $2, $3)', [message.id, account, amount]);
}

async function handle(db, message) {
	try {
		await db.query('BEGIN');
		await work(db, message);
		const { rows } = await db.query('SELECT outbox.complete($1, $2, $3) AS kept', [handler, message.id, message.attempt]);
		// The lease is lost: another consumer has the message, and its work counts.
		await db.query(rows[0].kept ? 'COMMIT' : 'ROLLBACK');
	} catch (error) {
		await db.query('ROLLBACK');
		if (error.hopeless) {
			await db.query('SELECT outbox.fail($1, $2, $3, $4, $5)', [handler, message.id, message.attempt, 'bad_payload', error.message]);
		} else {
			await db.query('SELECT outbox.retry($1, $2, $3, $4, error => $5)', [handler, message.id, message.attempt, error.code || 'error', error.message]);
		}
	}
}

async function main() {
	const db = new Client();
	await db.connect();
	while (!stopping) {
		// Committed at once: from here on the attempt counts, and others see the lease.
		const { rows } = await db.query('SELECT id, attempt, topic, payload FROM outbox.claim($1, $2)', [handler, 10]);
		for (const message of rows) {
			await handle(db, message);
		}
		if (rows.length === 0) {
			if (once) {
				break;
			}
			// A statement of its own, outside any transaction; short, so that a signal is heeded.
			await db.query('CALL outbox.wait($1, $2)', [handler, '2 s']);
		}
	}
	await db.end();
}

main().catch((error) => {
	console.error(error);
	process.exit(1);
});
