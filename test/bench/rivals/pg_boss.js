// pg-boss: four workers, which take a batch and, where it took less, ask again half
// a second after they did before, the least there is: batches so large that it
// is not that which is measured.
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
		await boss.work('bench', { batchSize: 2500, pollingIntervalSeconds: 0.5 }, jobs => Promise.all(jobs.map(job => work(job.id, job.data))));
	}
	ready();
})();
