/*-------------------------------------------------------------------------
 *
 * settler.c
 *		Gives plain successes to the settler, and keeps it running while there
 *		is enough for two.
 *
 * See settler.h and receipt.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "miscadmin.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "storage/shm_toc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/receipt.h"
#include "dispatch/settle.h"
#include "dispatch/settler.h"
#include "guc.h"
#include "shared/errand.h"
#include "worker/backoff.h"
#include "worker/clock.h"
#include "worker/worker.h"

/* So many plain successes waiting at once show that a second process pays. */
#define START_AT 1000

/* On two processors, only while so many deliveries are out. */
#define ENOUGH_OUT 4

/*
 * It is given so many at a time, or what there is once the first has waited
 * so long: each message costs waking it up and, there, a flush of WAL.
 */
#define GIVE_AT 256
#define GIVE_AFTER_US (5 * 1000)

/* It leaves when it has had nothing to do for so long. */
#define IDLE_US (10 * USECS_PER_SEC)

/* One that does not answer for so long is given up. */
#define PATIENCE_US (5 * USECS_PER_SEC)

/* After one could not be started. */
#define REST_US (60 * USECS_PER_SEC)

/* What one message to the settler holds. */
typedef struct Batch
{
	dlist_head	deliveries;
	int			n;
} Batch;

static MemoryContext context = NULL;

static BackgroundWorkerHandle *handle = NULL;	/* NULL: none is running */
static dsm_segment *segment = NULL; /* NULL: nobody to talk to */
static shm_mq_handle *to_settler = NULL;
static shm_mq_handle *from_settler = NULL;
static bool ready = false;		/* it has said hello */
static bool leaving = false;

/* Unanswered messages, oldest first. */
static Batch batches[OUTBOX_MAX_RECEIPT_MESSAGES];
static int	first_batch = 0;
static int	nbatches = 0;
static int	outstanding = 0;

static TimestampTz started = 0;
static OutboxBackoff backoff;	/* until another one may be started */
static TimestampTz last_given = 0;
static TimestampTz last_answer = 0;

/* Whatever way the dispatcher ends, its settler ends, too. */
static void
end_settler(int code, Datum arg)
{
	if (handle != NULL)
		TerminateBackgroundWorker(handle);
}

void
outbox_settler_init(void)
{
	context = AllocSetContextCreate(TopMemoryContext, "outbox settler", ALLOCSET_SMALL_SIZES);
	before_shmem_exit(end_settler, (Datum) 0);
}

int
outbox_settler_outstanding(void)
{
	return outstanding;
}

static Batch *
batch_at(int i)
{
	return &batches[(first_batch + i) % OUTBOX_MAX_RECEIPT_MESSAGES];
}

/* Everything that is with the settler waits for the dispatcher's own settlement again, oldest first. */
static void
take_back_all(void)
{
	while (nbatches > 0)
	{
		Batch	   *last = batch_at(--nbatches);

		outbox_outcomes_give_back(&last->deliveries);
	}
	outstanding = 0;
}

/* Talk to this settler no more.  It ends when it notices; one that failed is told to. */
static void
dismiss(bool failed, TimestampTz now)
{
	take_back_all();
	if (failed && handle != NULL)
		TerminateBackgroundWorker(handle);
	/* The queues' handles die with the segment's mapping. */
	dsm_detach(segment);
	segment = NULL;
	to_settler = NULL;
	from_settler = NULL;
	ready = false;
	MemoryContextReset(context);

	outbox_backoff_process_ended(&backoff, failed, started, now);
}

static void *
add_queue(shm_toc *toc, uint64 key, Size size)
{
	shm_mq	   *queue = shm_mq_create(shm_toc_allocate(toc, size), size);

	shm_toc_insert(toc, key, queue);
	return queue;
}

/*
 * Room for all unanswered messages of a size.  A reader says only now and
 * then that it has read: until then a quarter of the queue and a message may
 * still be taken up by what has been answered already.
 */
static Size
queue_size(Size message)
{
	return 2 * OUTBOX_MAX_RECEIPT_MESSAGES * MAXALIGN(message + 2 * MAXIMUM_ALIGNOF) + BLCKSZ;
}

/* The segment with its two queues, big enough that nobody ever has to wait for room. */
static void
create_queues(void)
{
	Size		to_size = queue_size(sizeof(OutboxReceipts));
	Size		from_size = queue_size(sizeof(OutboxReceiptFates));
	shm_toc_estimator estimator;
	shm_toc    *toc;
	shm_mq	   *queue;

	shm_toc_initialize_estimator(&estimator);
	shm_toc_estimate_chunk(&estimator, to_size);
	shm_toc_estimate_chunk(&estimator, from_size);
	shm_toc_estimate_keys(&estimator, 2);
	segment = dsm_create(shm_toc_estimate(&estimator), DSM_CREATE_NULL_IF_MAXSEGMENTS);
	if (segment == NULL)
		return;
	toc = shm_toc_create(OUTBOX_RECEIPT_MAGIC, dsm_segment_address(segment), dsm_segment_map_length(segment));

	queue = add_queue(toc, OUTBOX_RECEIPT_KEY_TO_SETTLER, to_size);
	shm_mq_set_sender(queue, MyProc);
	to_settler = shm_mq_attach(queue, segment, NULL);
	queue = add_queue(toc, OUTBOX_RECEIPT_KEY_TO_DISPATCHER, from_size);
	shm_mq_set_receiver(queue, MyProc);
	from_settler = shm_mq_attach(queue, segment, NULL);
}

/* False if there is no room for one: then all goes on without. */
static bool
try_start(void)
{
	OutboxWorker worker = {
		.type = "outbox settler", .main = "outbox_settler_main", .extra = &MyDatabaseId, .extra_size = sizeof(MyDatabaseId)
	};
	MemoryContext oldcontext = MemoryContextSwitchTo(context);

	create_queues();
	MemoryContextSwitchTo(oldcontext);
	if (segment == NULL)
		return false;
	worker.arg = UInt32GetDatum(dsm_segment_handle(segment));
	handle = outbox_register_worker(&worker);
	if (handle == NULL)
		return false;
	shm_mq_set_handle(to_settler, handle);
	shm_mq_set_handle(from_settler, handle);
	return true;
}

/* It is a help and no need, so what keeps it from starting is only said. */
static void
start(TimestampTz now)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	volatile bool done = false;

	started = now;
	last_given = now;
	PG_TRY();
	{
		done = try_start();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(oldcontext);
		HOLD_INTERRUPTS();
		EmitErrorReport();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	if (done)
		return;
	if (segment != NULL)
		dismiss(false, now);
	outbox_backoff_wait(&backoff, REST_US, now);
}

/* An answer: what it says is written is settled, the rest is settled by the dispatcher. */
static void
take_answer(const OutboxReceiptFates *fates, TimestampTz now)
{
	Batch	   *batch = batch_at(0);
	dlist_head	unwritten = DLIST_STATIC_INIT(unwritten);

	for (int i = 0; i < batch->n; i++)
	{
		dlist_node *node = dlist_pop_head_node(&batch->deliveries);
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, node);

		if (fates->written[i])
			outbox_outcome_written(delivery, now);
		else
		{
			delivery->settle_here = true;
			dlist_push_tail(&unwritten, node);
		}
	}
	outbox_outcomes_give_back(&unwritten);
	outstanding -= batch->n;
	first_batch = (first_batch + 1) % OUTBOX_MAX_RECEIPT_MESSAGES;
	nbatches--;
}

static bool
is_sound(const OutboxReceiptFates *fates, Size size)
{
	if (size < offsetof(OutboxReceiptFates, written))
		return false;
	if (fates->n == 0)
		return !ready;
	return nbatches > 0 && fates->n == batch_at(0)->n && size == outbox_receipt_fates_size(fates->n);
}

/* Read what the settler has said.  False if it is to be dismissed. */
static bool
collect(TimestampTz now)
{
	shm_mq_result result;
	Size		size;
	void	   *data;

	while ((result = shm_mq_receive(from_settler, &size, &data, true)) == SHM_MQ_SUCCESS)
	{
		const OutboxReceiptFates *fates = data;

		if (!is_sound(fates, size))
			return false;
		last_answer = now;
		if (fates->n == 0)
			ready = true;
		else
			take_answer(fates, now);
	}
	if (result == SHM_MQ_DETACHED)
		return false;
	return nbatches == 0 || now - last_answer < PATIENCE_US;
}

/* Send one message.  False if the settler is to be dismissed. */
static bool
give_batch(TimestampTz now)
{
	static OutboxReceipts message;
	Batch	   *batch = batch_at(nbatches);
	dlist_iter	iter;

	dlist_init(&batch->deliveries);
	batch->n = outbox_outcomes_take_plain(&batch->deliveries, OUTBOX_MAX_RECEIPTS);
	message.n = 0;
	dlist_foreach(iter, &batch->deliveries)
	{
		const OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);
		OutboxReceipt *receipt = &message.receipts[message.n++];

		receipt->id = delivery->id;
		receipt->handler_id = delivery->handler_id;
		receipt->attempts = delivery->attempts;
		receipt->budget_from = delivery->budget_from;
		receipt->http_status = delivery->http_status;
		receipt->tid = delivery->tid;
	}
	outstanding += batch->n;
	nbatches++;
	if (nbatches == 1)
		last_answer = now;
	last_given = now;
	return outbox_mq_send(to_settler, outbox_receipts_size(message.n), &message) == SHM_MQ_SUCCESS;
}

/* Are there enough for a message?  One that is busy is not hurried. */
static bool
is_due(TimestampTz now)
{
	int			n = outbox_outcomes_plain();

	return n >= GIVE_AT ||
		(n > 0 && nbatches == 0 && now - outbox_outcomes_oldest() >= GIVE_AFTER_US);
}

static bool
give(TimestampTz now)
{
	while (nbatches < OUTBOX_MAX_RECEIPT_MESSAGES && is_due(now))
	{
		if (!give_batch(now))
			return false;
	}
	return true;
}

/*
 * A second process is of use only where it has a processor to itself.  Of two
 * processors it may take the receiver's, so that answers come later: that
 * does no harm while enough others are out.
 */
static bool
does_pay(int out)
{
	static long processors = 0;

	if (processors == 0)
		processors = sysconf(_SC_NPROCESSORS_ONLN);
	return processors > 2 || (processors == 2 && out >= ENOUGH_OUT);
}

/* It is a help, and makes room for workers that are needed. */
static bool
is_welcome(TimestampTz now)
{
	return !leaving && outbox_settler && !outbox_errand_runs() && !outbox_workers_are_lacking(outbox_to_wall(now));
}

static bool
may_start(TimestampTz now)
{
	return is_welcome(now) && handle == NULL && outbox_backoff_is_over(&backoff, now) && outbox_outcomes_plain() >= START_AT;
}

/* The last one has ended: there may be another. */
static void
note_end(void)
{
	pid_t		pid;

	if (handle == NULL || segment != NULL || GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
		return;
	pfree(handle);
	handle = NULL;
}

static bool
is_over(TimestampTz now)
{
	return nbatches == 0 && (!is_welcome(now) || now - last_given >= IDLE_US);
}

void
outbox_settler_attend(TimestampTz now, bool allowed, int out)
{
	allowed = allowed && does_pay(out);
	note_end();
	if (segment == NULL)
	{
		if (allowed && may_start(now))
			start(now);
		return;
	}
	if (!collect(now) || (ready && allowed && is_welcome(now) && !give(now)))
		dismiss(true, now);
	else if (is_over(now))
		dismiss(false, now);
}

TimestampTz
outbox_settler_next(void)
{
	if (segment == NULL)
		return DT_NOEND;
	return nbatches > 0 ? last_answer + PATIENCE_US : last_given + IDLE_US;
}

void
outbox_settler_leave(void)
{
	leaving = true;
	/* It may be waiting for what the dispatcher has no time for, and ends with what it is at. */
	if (handle != NULL)
		TerminateBackgroundWorker(handle);
}

bool
outbox_settler_is_gone(void)
{
	pid_t		pid;

	return handle == NULL || GetBackgroundWorkerPid(handle, &pid) == BGWH_STOPPED;
}
