/*-------------------------------------------------------------------------
 *
 * module.c
 *		Loads the library: settings, shared memory, the transaction callback,
 *		the launcher.
 *
 * Loaded by the postmaster through shared_preload_libraries; without that,
 * loaded by each backend that calls a function of the extension, where
 * staging and the SQL surface work but nothing is pushed by itself; and by the
 * background workers that one call of outbox.deliver_now() has.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "consume/obligations.h"
#include "guc.h"
#include "shared/counting.h"
#include "shared/doorbell.h"
#include "shared/shmem.h"
#include "shared/unrouted.h"
#include "worker/guard.h"
#include "worker/restored.h"
#include "worker/worker.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/*
 * The library's only transaction callback, registered once per process.
 * What it calls at commit never fails; a parallel worker stages nothing.
 */
static void
at_transaction_end(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			outbox_doorbell_before_commit();
			break;
		case XACT_EVENT_COMMIT:
			outbox_consume_at_commit();
			outbox_doorbell_at_commit();
			outbox_unrouted_at_commit();
			outbox_counting_at_commit();
			outbox_guard_at_end();
			break;
		case XACT_EVENT_ABORT:
			outbox_consume_at_abort();
			outbox_doorbell_at_abort();
			outbox_unrouted_at_abort();
			outbox_counting_at_abort();
			outbox_guard_at_end();
			break;
		case XACT_EVENT_PRE_PREPARE:
			outbox_consume_before_prepare();
			outbox_doorbell_before_prepare();
			break;
		case XACT_EVENT_PREPARE:
			outbox_consume_at_prepare();
			outbox_doorbell_at_prepare();
			/* What it staged is likely to commit. */
			outbox_unrouted_at_commit();
			outbox_counting_at_commit();
			outbox_guard_at_end();
			break;
		default:
			break;
	}
}

void
_PG_init(void)
{
	outbox_define_settings();
	/* Before recovery takes the evidence away. */
	if (process_shared_preload_libraries_in_progress && !IsUnderPostmaster)
		outbox_restored_note();
	outbox_shmem_init();
	outbox_consume_listen();
	RegisterXactCallback(at_transaction_end, NULL);
	RegisterSubXactCallback(outbox_consume_at_subtransaction, NULL);
	RegisterSubXactCallback(outbox_counting_at_subtransaction, NULL);
	if (process_shared_preload_libraries_in_progress)
	{
		outbox_guard_init();
		outbox_register_launcher();
	}
}
