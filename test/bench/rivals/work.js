// What every worker does for a job, and how it is told what to do: the database
// is DATABASE_URL; with TARGET each job is posted there, with no more than
// CONCURRENCY requests out, without it nothing is done.  "working" is printed with
// the first job.  Workers end by SIGTERM.
'use strict';

const { Pool } = require('undici');

const concurrency = Number(process.env.CONCURRENCY || 50);
const target = process.env.TARGET;
// As many connections as requests, kept: undici queues what is more.
const receiver = target && new Pool(new URL(target).origin, { connections: concurrency, pipelining: 1 });
let begun = false;

exports.concurrency = concurrency;
exports.database = process.env.DATABASE_URL;
// One message at a time, and soon, rather than many a second.
exports.soon = process.env.SOON === '1';

exports.work = async function (id, payload) {
	if (!begun) {
		begun = true;
		process.stdout.write('working\n');
	}
	if (!receiver) {
		return;
	}
	const answer = await receiver.request({
		path: '/', method: 'POST', body: JSON.stringify(payload),
		headers: { 'content-type': 'application/json', 'webhook-id': String(id) } });
	await answer.body.dump();
	if (answer.statusCode >= 300) {
		throw new Error(`answer ${answer.statusCode}`);
	}
};

exports.ready = () => process.stdout.write('ready\n');
process.on('SIGTERM', () => process.exit(0));
