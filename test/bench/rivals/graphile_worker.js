// graphile-worker, as its page about performance has it for many jobs: a local
// queue and completions in batches; without either where jobs come one at a time.
'use strict';

const { run, runMigrations } = require('graphile-worker');
const { work, ready, database, concurrency, soon } = require('./work');

const many = { concurrentJobs: concurrency, maxPoolSize: 10, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

(async () => {
	if (process.argv[2] === 'setup') {
		await runMigrations({ connectionString: database });
		return;
	}
	const runner = await run({
		connectionString: database, noHandleSignals: true,
		preset: { worker: soon ? { concurrentJobs: concurrency } : many },
		taskList: { deliver: (payload, helpers) => work(helpers.job.id, payload) } });
	ready();
	await runner.promise;
})();
