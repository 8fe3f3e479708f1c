// pg-boss: four workers of up to 500 jobs at a time, which ask again after half a
// second, the least there is, where there was less to do.
'use strict';

const PgBoss = require('pg-boss');
const { work, ready, database } = require('./work');

(async () => {
	const boss = new PgBoss({ connectionString: database, schedule: false });
	boss.on('error', error => process.stderr.write(`${error}\n`));
	await boss.start();
	if (process.argv[2] === 'setup') {
		await boss.createQueue('bench');
		await boss.stop({ graceful: false });
		return;
	}
	for (let n = 0; n < 4; n++) {
		await boss.work('bench', { batchSize: 500, pollingIntervalSeconds: 0.5 }, jobs => Promise.all(jobs.map(job => work(job.id, job.data))));
	}
	ready();
})();
