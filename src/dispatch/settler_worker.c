/*-------------------------------------------------------------------------
 *
 * settler_worker.c
 *		The background worker that writes receipts.
 *
 * It reads all that the dispatcher has sent, settles it in one transaction,
 * and answers; while that is flushed, more comes in.  It decides nothing:
 * what it cannot write at once, because somebody holds the row or because
 * the transaction fails, goes back to the dispatcher.  It ends when the
 * dispatcher no longer listens.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "storage/shm_toc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/receipt.h"
#include "dispatch/settle_row.h"
#include "shared/shmem.h"
#include "worker/interrupt.h"
#include "worker/settings.h"
#include "worker/statistics.h"
#include "worker/work.h"
#include "worker/worker.h"

/* For what is not locked conditionally. */
#define LOCK_TIMEOUT "2s"

static OutboxDatabase *database = NULL;
static MemoryContext iteration_context = NULL;
static shm_mq_handle *from_dispatcher = NULL;
static shm_mq_handle *to_dispatcher = NULL;

/* What has been read and is to be answered. */
static int	nmessages = 0;
static int	counts[OUTBOX_MAX_RECEIPT_MESSAGES];
static int	nreceipts = 0;
static OutboxReceipt receipts[OUTBOX_MAX_RECEIPT_MESSAGES * OUTBOX_MAX_RECEIPTS];
static bool written[OUTBOX_MAX_RECEIPT_MESSAGES * OUTBOX_MAX_RECEIPTS];


/* Whatever way the process ends, the slot does not name it any more. */
static void
leave_slot(int code, Datum arg)
{
	SpinLockAcquire(&database->mutex);
	if (database->settler_pid == MyProcPid)
		database->settler_pid = 0;
	SpinLockRelease(&database->mutex);
}

/* Who needs the database for himself waits for this process, too. */
static bool
enter_slot(Oid dboid)
{
	bool		is_its;

	database = outbox_find_database(dboid);
	if (database == NULL)
		return false;
	before_shmem_exit(leave_slot, (Datum) 0);
	SpinLockAcquire(&database->mutex);
	/* It may have been given to another database since it was found. */
	is_its = (database->dboid == dboid);
	if (is_its)
		database->settler_pid = MyProcPid;
	SpinLockRelease(&database->mutex);
	return is_its;
}

/* False if the dispatcher is gone already. */
static bool
attach(dsm_handle segment_handle)
{
	dsm_segment *segment = dsm_attach(segment_handle);
	shm_toc    *toc;
	shm_mq	   *queue;

	if (segment == NULL)
		return false;
	toc = shm_toc_attach(OUTBOX_RECEIPT_MAGIC, dsm_segment_address(segment));
	if (toc == NULL)
		return false;
	queue = shm_toc_lookup(toc, OUTBOX_RECEIPT_KEY_TO_SETTLER, false);
	shm_mq_set_receiver(queue, MyProc);
	from_dispatcher = shm_mq_attach(queue, segment, NULL);
	queue = shm_toc_lookup(toc, OUTBOX_RECEIPT_KEY_TO_DISPATCHER, false);
	shm_mq_set_sender(queue, MyProc);
	to_dispatcher = shm_mq_attach(queue, segment, NULL);
	return true;
}

/* Settings of the server or of this database. */
static void
take_settings(void)
{
	outbox_pin_settings();
	outbox_work_begin(false);
	outbox_apply_database_settings();
	outbox_pin_settling_alone(LOCK_TIMEOUT);
	outbox_work_commit();
}

static bool
say(int n, const bool *fates)
{
	static OutboxReceiptFates answer;

	answer.n = n;
	memcpy(answer.written, fates, n * sizeof(bool));
	return outbox_mq_send(to_dispatcher, outbox_receipt_fates_size(n), &answer) == SHM_MQ_SUCCESS;
}

/* Read what there is.  False if nobody listens any more. */
static bool
read_messages(void)
{
	shm_mq_result result = SHM_MQ_SUCCESS;
	Size		size;
	void	   *data;

	nmessages = 0;
	nreceipts = 0;
	while (nmessages < OUTBOX_MAX_RECEIPT_MESSAGES &&
		   (result = shm_mq_receive(from_dispatcher, &size, &data, true)) == SHM_MQ_SUCCESS)
	{
		const OutboxReceipts *message = data;

		if (message->n < 1 || message->n > OUTBOX_MAX_RECEIPTS || size != outbox_receipts_size(message->n))
			elog(ERROR, "outbox settler was sent a malformed message of %zu bytes", size);
		memcpy(&receipts[nreceipts], message->receipts, message->n * sizeof(OutboxReceipt));
		nreceipts += message->n;
		counts[nmessages++] = message->n;
	}
	return nmessages > 0 || result != SHM_MQ_DETACHED;
}

/* Write what was read, all in one transaction.  Should it fail, nothing is written. */
static void
settle(void)
{
	memset(written, 0, nreceipts * sizeof(bool));
	PG_TRY();
	{
		outbox_work_begin(true);
		outbox_settle_receipts(receipts, nreceipts, written, GetCurrentTimestamp());
		outbox_work_commit();
	}
	PG_CATCH();
	{
		(void) outbox_work_abort(iteration_context, GetCurrentTimestamp());
		memset(written, 0, nreceipts * sizeof(bool));
	}
	PG_END_TRY();
	MemoryContextSwitchTo(iteration_context);
	/* A wait inside, for a lock or a page, may have swallowed a message's ring. */
	SetLatch(MyLatch);
}

static bool
answer(void)
{
	int			done = 0;

	for (int i = 0; i < nmessages; i++)
	{
		if (!say(counts[i], &written[done]))
			return false;
		done += counts[i];
	}
	return true;
}

static void
wait_for_messages(void)
{
	pgstat_report_activity(STATE_IDLE, "waiting for receipts to write");
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, outbox_statistics_pending() ? 1000 : 60000, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	pgstat_report_activity(STATE_RUNNING, "writing receipts");
}

static void
main_loop(void)
{
	while (!ShutdownRequestPending)
	{
		MemoryContextReset(iteration_context);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			take_settings();
		}
		if (!read_messages())
			break;
		if (nmessages == 0)
		{
			outbox_statistics_report(GetCurrentTimestamp(), true);
			wait_for_messages();
			continue;
		}
		settle();
		if (!answer())
			break;
		outbox_statistics_report(GetCurrentTimestamp(), false);
	}
}

void
outbox_settler_main(Datum main_arg)
{
	Oid			dboid;

	memcpy(&dboid, MyBgworkerEntry->bgw_extra, sizeof(dboid));
	outbox_interrupts_before_connection();
	if (!enter_slot(dboid))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);
	outbox_interrupts_init(false);

	iteration_context = AllocSetContextCreate(TopMemoryContext, "outbox iteration", ALLOCSET_DEFAULT_SIZES);
	if (attach(DatumGetUInt32(main_arg)))
	{
		take_settings();
		MemoryContextSwitchTo(iteration_context);
		if (say(0, written))
			main_loop();
	}
	proc_exit(0);
}
