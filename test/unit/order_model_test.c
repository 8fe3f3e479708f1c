/*-------------------------------------------------------------------------
 *
 * order_model_test.c
 *		Whatever the order of events, a key is tried one at a time and in order.
 *
 * A model of a table, an ordered lane and a receiver over the real order.c.
 * What commits, is read, sent, answered and settled happens step by step in
 * a random order, with everything that can come between: late commits,
 * operators who cancel, requeue, lock rows and pause, messages that are
 * missing, requests that could not be sent, and transactions that fail at any
 * of their steps.  Nothing may be sent while another one of its key is out or
 * one before it, that could be known of, is not done with; and in the end
 * nothing may be left waiting.
 *
 * The steps are those of key_scan.c, take.c, settle.c and reading.c.  So that this
 * is known to be able to fail, the same is done with one of the rules of
 * order.h broken at a time, and then something must go wrong.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "dispatch/order.h"
#include "dispatch/schedule.h"

#include "tap.h"

#define KEYS 3
#define MAX_ROWS 60
#define HELD_RETRY 100

/* Rules that can be broken. */
typedef enum Fault
{
	NO_FAULT,
	SETTLED_BEHIND_HELD,		/* whether an earlier one is settled is not asked */
	NO_UNSETTLED,				/* nor that a settlement has failed */
	NO_CHANGED,					/* nor that rows have changed */
	UNSENT_STAYS_OUT,			/* what comes back unsent does not wait for the one before it */
	FAULTS
} Fault;

typedef struct Row
{
	int			key;
	bool		visible;
	OutboxState state;
	TimestampTz due_at;
	int			version;		/* goes up with each change but a lock */
	bool		locked;
	bool		missing;		/* its message is */
} Row;

/* What the dispatcher knows of a row besides what is in memory. */
typedef struct Sight
{
	bool		ahead;			/* to be read when it is due */
	bool		known;			/* it was met since it changed */
} Sight;

static Row	rows[MAX_ROWS];		/* in the order of ids */
static Row	rows_before[MAX_ROWS];	/* the transaction */
static Sight sights[MAX_ROWS];
static Sight sights_before[MAX_ROWS];
static OutboxDelivery *in_memory[MAX_ROWS];
static int	versions[MAX_ROWS]; /* of those in memory, as they were read */
static int	nrows;

static OutboxHandler handler;
static OutboxLane lane;
static TimestampTz clock_now;
static bool paused;
static dlist_head fetched;
static dlist_head waiting;
static dlist_head locked_rows;
static dlist_head settled;
static OutboxOrderKey *scanned_key;
static OutboxDelivery *reading;

static Fault fault;
static uint64 random_state;
static const char *broken;		/* what went wrong first */
static long nsent;
static TimestampTz nanswered;

static int
dice(int n)
{
	random_state = random_state * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (int) ((random_state >> 33) % n);
}

static void
complain(const char *what)
{
	if (broken == NULL)
		broken = what;
}

/*
 * What order.c needs of a backend.
 */
typedef struct Chunk
{
	struct Chunk *next;
	struct Chunk *prev;
	double		aligned;
} Chunk;

static Chunk chunks = {&chunks, &chunks, 0};

static void *
take_chunk(Size size)
{
	Chunk	   *chunk = calloc(1, sizeof(Chunk) + size);

	chunk->next = chunks.next;
	chunk->prev = &chunks;
	chunks.next->prev = chunk;
	chunks.next = chunk;
	return chunk + 1;
}

MemoryContext
AllocSetContextCreateInternal(MemoryContext parent, const char *name,
							  Size minContextSize, Size initBlockSize, Size maxBlockSize)
{
	return parent;
}

void *
MemoryContextAllocZero(MemoryContext context, Size size)
{
	return take_chunk(size);
}

void *
MemoryContextAllocExtended(MemoryContext context, Size size, int flags)
{
	return take_chunk(size);
}

void
pfree(void *pointer)
{
	Chunk	   *chunk = (Chunk *) pointer - 1;

	chunk->next->prev = chunk->prev;
	chunk->prev->next = chunk->next;
	free(chunk);
}

void
MemoryContextDelete(MemoryContext context)
{
	while (chunks.next != &chunks)
		pfree(chunks.next + 1);
}

bool
errstart(int elevel, const char *domain)
{
	abort();
}

bool
errstart_cold(int elevel, const char *domain)
{
	abort();
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
}

int
errmsg_internal(const char *fmt,...)
{
	return 0;
}

/* An assertion has failed; unit.mk gives this its name. */
extern void unit_assert_failed(void);

void
unit_assert_failed(void)
{
	abort();
}

/*
 * lane.c
 */
static pg_uuid_t
id_of(int row)
{
	pg_uuid_t	id = {{0}};

	id.data[0] = (unsigned char) (row + 1);
	return id;
}

static int
row_of(const pg_uuid_t *id)
{
	return id->data[0] - 1;
}

OutboxDelivery *
outbox_delivery_find(const pg_uuid_t *id, int32 handler_id)
{
	return in_memory[row_of(id)];
}

void
outbox_delivery_free(OutboxDelivery *delivery)
{
	in_memory[row_of(&delivery->id)] = NULL;
	free(delivery);
}

void
outbox_lane_ready(OutboxLane *l)
{
}

void
outbox_lane_enqueue(OutboxLane *l, OutboxDelivery *delivery)
{
	dlist_push_tail(&l->queue, &delivery->link);
	delivery->phase = OUTBOX_PHASE_QUEUED;
	l->nqueued++;
}

void
outbox_lane_unqueue(OutboxLane *l, OutboxDelivery *delivery)
{
	dlist_delete(&delivery->link);
	l->nqueued--;
}

/* A row has changed: it is read when it is due, behind the position or ahead of it. */
static void
expect(int row)
{
	sights[row].ahead = true;
}

static void
forget_queued(const OutboxNotice *notice)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &lane.queue)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);
		OutboxQueuePosition key = {delivery->due_at, delivery->id};

		if (notice != NULL && (outbox_position_cmp(&key, &notice->lo) < 0 || outbox_position_cmp(&key, &notice->hi) > 0))
			continue;
		outbox_lane_unqueue(&lane, delivery);
		outbox_order_discard(delivery);
	}
}

/* The doorbell says that rows from lo to hi were changed. */
static void
ring_changed(OutboxQueuePosition lo, OutboxQueuePosition hi)
{
	OutboxNotice notice = {1, OUTBOX_NOTICE_REREAD, lo, hi};

	forget_queued(&notice);
	if (fault == NO_CHANGED)
		outbox_order_forget_waiting(lane.order);
	else
		outbox_order_changed(lane.order, &notice);
	for (int i = 0; i < nrows; i++)
	{
		OutboxQueuePosition key = {rows[i].due_at, id_of(i)};

		if (outbox_position_cmp(&key, &lo) >= 0 && outbox_position_cmp(&key, &hi) <= 0)
			expect(i);
	}
}

/*
 * Sending, and what must be true of it.
 */
static bool
is_outstanding(int row)
{
	return rows[row].visible && rows[row].state < OUTBOX_DELIVERED;
}

static void
check_sent(const OutboxDelivery *delivery, const OutboxDelivery *before)
{
	int			row = row_of(&delivery->id);

	for (int i = 0; i < nrows; i++)
	{
		const OutboxDelivery *other = in_memory[i];

		if (i == row || rows[i].key != rows[row].key)
			continue;
		if (other != NULL && other->phase == OUTBOX_PHASE_SENT && before == NULL)
			complain("two of a key are out");
		if (i > row || !sights[i].known)
			continue;
		if (rows[i].visible && rows[i].state == OUTBOX_DEAD && handler.block_on_dead)
			complain("one is sent past a dead one that blocks");
		if (!is_outstanding(i))
			continue;
		if (other == NULL)
			complain("one is sent past another one that is outstanding");
		else if (before == NULL && versions[i] != rows[i].version)
			complain("one is sent past another one that was requeued");
		else if (before == NULL && (other->phase != OUTBOX_PHASE_ANSWERED || other->verdict.state != OUTBOX_DELIVERED))
			complain("one is sent past another one that is not done with");
	}
	nsent++;
}

static void
take_back(OutboxDelivery **request, int n)
{
	for (int i = n - 1; i >= 0; i--)
	{
		if (fault != UNSENT_STAYS_OUT && outbox_order_taken_back(request[i]))
			continue;
		dlist_push_head(&lane.queue, &request[i]->link);
		request[i]->phase = OUTBOX_PHASE_QUEUED;
		lane.nqueued++;
	}
}

/* One request; those of it are linked by their order of being sent. */
static OutboxDelivery *requests[MAX_ROWS][4];
static int	sizes[MAX_ROWS];
static int	nrequests;

static void
send_one(void)
{
	OutboxDelivery **request = requests[nrequests];
	OutboxDelivery *delivery;
	int			n = 0;

	if (paused || lane.nqueued == 0 || nrequests == 4)
		return;
	delivery = dlist_head_element(OutboxDelivery, link, &lane.queue);
	outbox_lane_unqueue(&lane, delivery);
	for (;;)
	{
		check_sent(delivery, n > 0 ? request[n - 1] : NULL);
		request[n++] = delivery;
		delivery->phase = OUTBOX_PHASE_SENT;
		if (n == handler.batch_size || (delivery = outbox_order_follower(delivery)) == NULL)
			break;
	}
	if (dice(10) == 0)
	{
		take_back(request, n);
		return;
	}
	sizes[nrequests++] = n;
}

static void
add_outcome(OutboxDelivery *delivery)
{
	if (!outbox_order_answered(delivery))
	{
		outbox_order_discard(delivery);
		return;
	}
	delivery->phase = OUTBOX_PHASE_ANSWERED;
	delivery->finished_at = ++nanswered;
	dlist_push_tail(&waiting, &delivery->link);
}

static void
answer_one(void)
{
	int			which = nrequests > 0 ? dice(nrequests) : 0;

	if (nrequests == 0)
		return;
	for (int i = 0; i < sizes[which]; i++)
	{
		OutboxDelivery *delivery = requests[which][i];
		int			roll = dice(20);

		delivery->verdict.state = roll < 13 ? OUTBOX_DELIVERED : roll < 18 ? OUTBOX_RETRYING : OUTBOX_DEAD;
		add_outcome(delivery);
	}
	nrequests--;
	sizes[which] = sizes[nrequests];
	memcpy(requests[which], requests[nrequests], sizeof(requests[0]));
}

/*
 * fetch.c and key_scan.c.  A step that fails is a longjmp in a small way: it
 * returns false all the way up.
 */
static int	steps_left;			/* until the transaction fails; -1: it does not */

static bool
step_fails(void)
{
	return steps_left >= 0 && steps_left-- == 0;
}

static bool
take(int row, OutboxOrderKey *key)
{
	OutboxDelivery *delivery = calloc(1, sizeof(OutboxDelivery));

	delivery->id = id_of(row);
	delivery->handler_id = 1;
	delivery->lane = &lane;
	delivery->due_at = rows[row].due_at;
	delivery->attempts = rows[row].state == OUTBOX_RETRYING ? 1 : 0;
	versions[row] = rows[row].version;
	in_memory[row] = delivery;
	reading = delivery;
	outbox_order_take(key, delivery);
	if (step_fails())
		return false;
	reading = NULL;
	/* A message is there as long as this points somewhere. */
	delivery->message = rows[row].missing ? NULL : (struct OutboxMessage *) &rows[row];
	dlist_push_tail(&fetched, &delivery->link);
	return true;
}

typedef enum WalkEnd
{
	WALK_ON, WALK_STOPS, WALK_FAILS
} WalkEnd;

static WalkEnd
visit(OutboxOrderKey *key, int row, int *room, int *bound)
{
	const OutboxDelivery *delivery = in_memory[row];
	pg_uuid_t	id = id_of(row);
	bool		goes_first = outbox_order_goes_first(key);

	sights[row].known = true;
	if (delivery != NULL && outbox_order_is_under_way(delivery))
		return WALK_ON;
	if (delivery != NULL || rows[row].due_at > clock_now)
	{
		outbox_order_block(key, &id, rows[row].due_at);
		return WALK_STOPS;
	}
	if (goes_first && *bound <= 0)
	{
		outbox_order_want(key);
		return WALK_STOPS;
	}
	if (*room <= 0)
	{
		outbox_order_leaves_rows(key);
		outbox_order_is_complete(key);
		return WALK_STOPS;
	}
	if (goes_first)
		(*bound)--;
	(*room)--;
	return take(row, key) ? WALK_ON : WALK_FAILS;
}

static void
stop_among_settled(OutboxOrderKey *key, bool found)
{
	if (found)
		outbox_order_leaves_rows(key);
	else
		outbox_order_want(key);
}

static bool
walk(OutboxOrderKey *key, int *bound)
{
	int			room = outbox_order_room(key);
	int			k = outbox_order_key_text(key)[0] - 'a';
	pg_uuid_t	start;
	bool		found;
	int			dead = -1;

	if (room == 0)
	{
		outbox_order_leaves_rows(key);
		return true;
	}
	found = !outbox_order_start(key, &start);
	for (int i = 0; handler.block_on_dead && i < nrows && dead < 0; i++)
	{
		if (rows[i].key == k && rows[i].visible && rows[i].state == OUTBOX_DEAD)
			dead = i;
	}
	for (int i = Max(0, row_of(&start)); i < nrows; i++)
	{
		pg_uuid_t	id = id_of(i);

		if (rows[i].key != k)
			continue;
		if (step_fails())
			return false;
		if (!found)
			outbox_order_raise_floor(key, &id);
		if (dead >= 0 && dead < i)
		{
			id = id_of(dead);
			outbox_order_block(key, &id, DT_NOEND);
			return true;
		}
		if (is_outstanding(i))
		{
			WalkEnd		end = visit(key, i, &room, bound);

			found = true;
			if (end != WALK_ON)
				return end == WALK_STOPS;
		}
		else
		{
			outbox_order_stepped_over(key, 20);
			/* There are too many of these. */
			if (dice(5) == 0)
			{
				stop_among_settled(key, found);
				return true;
			}
		}
	}
	outbox_order_is_complete(key);
	return true;
}

static bool
scan_key(OutboxOrderKey *key, int *bound)
{
	outbox_order_begin_key_scan(key);
	scanned_key = key;
	if (!walk(key, bound))
		return false;
	scanned_key = NULL;
	outbox_order_end_key_scan(key);
	return true;
}

static bool
read_rows(void)
{
	int			bound = 1 + dice(4);
	OutboxOrderKey *key;

	while (bound > 0 && (key = outbox_order_next_wanted(lane.order)) != NULL)
	{
		if (!scan_key(key, &bound))
			return false;
	}
	lane.more = false;
	for (int i = 0; i < nrows; i++)
	{
		char		name[2] = {(char) ('a' + rows[i].key), '\0'};
		pg_uuid_t	id = id_of(i);

		if (!sights[i].ahead || !rows[i].visible || rows[i].due_at > clock_now)
			continue;
		if (bound <= 0)
		{
			lane.more = true;
			break;
		}
		sights[i].ahead = false;
		sights[i].known = true;
		if (in_memory[i] != NULL || !is_outstanding(i))
			continue;
		key = outbox_order_meet(lane.order, name, &id, clock_now);
		if (key != NULL && !scan_key(key, &bound))
			return false;
	}
	return !step_fails();
}

static void
deliver_fetched(void)
{
	while (!dlist_is_empty(&fetched))
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, dlist_pop_head_node(&fetched));

		if (delivery->message == NULL)
		{
			delivery->verdict.state = OUTBOX_DEAD;
			add_outcome(delivery);
		}
		else if (outbox_order_arrived(delivery))
			outbox_lane_enqueue(&lane, delivery);
	}
}

/*
 * settle.c
 */
static void
retry_locked(void)
{
	dlist_head	due = DLIST_STATIC_INIT(due);

	while (!dlist_is_empty(&locked_rows) && dlist_head_element(OutboxDelivery, link, &locked_rows)->settle_after <= clock_now)
		dlist_push_head(&due, dlist_pop_head_node(&locked_rows));
	while (!dlist_is_empty(&due))
		dlist_push_head(&waiting, dlist_pop_head_node(&due));
}

static void
settle_one(OutboxDelivery *delivery)
{
	int			row = row_of(&delivery->id);
	bool		hold = outbox_order_must_wait(delivery) && fault != SETTLED_BEHIND_HELD;

	delivery->obsolete = !is_outstanding(row) || versions[row] != rows[row].version;
	dlist_delete(&delivery->link);
	if (hold || (!delivery->obsolete && rows[row].locked))
	{
		delivery->settle_after = clock_now + HELD_RETRY;
		outbox_order_pin(delivery);
		dlist_push_tail(&locked_rows, &delivery->link);
		return;
	}
	delivery->found_due_at = delivery->obsolete && is_outstanding(row) ? rows[row].due_at : DT_NOEND;
	if (!delivery->obsolete)
	{
		/* After a crash it would be sent again behind this one. */
		for (int i = 0; i < nrows; i++)
		{
			if (rows[i].key == rows[row].key && in_memory[i] != NULL && in_memory[i]->order_state == OUTBOX_ORDER_OK &&
				in_memory[i]->finished_at < delivery->finished_at)
				complain("one is settled before another one that was answered before it");
		}
		rows[row].state = delivery->verdict.state;
		rows[row].version++;
		if (delivery->verdict.state == OUTBOX_RETRYING)
			delivery->found_due_at = rows[row].due_at = clock_now + 1 + dice(300);
	}
	outbox_order_settled(delivery, delivery->found_due_at != DT_NOEND, delivery->found_due_at);
	dlist_push_tail(&settled, &delivery->link);
}

static bool
settle(void)
{
	retry_locked();
	/* A lock on the table is in the way. */
	if (dice(12) == 0)
		return true;
	for (int n = 0; n < 5 && !dlist_is_empty(&waiting); n++)
	{
		if (step_fails())
			return false;
		settle_one(dlist_head_element(OutboxDelivery, link, &waiting));
	}
	return !step_fails();
}

static void
finish_settled(void)
{
	while (!dlist_is_empty(&settled))
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, dlist_pop_head_node(&settled));
		int			row = row_of(&delivery->id);
		bool		comes_back = delivery->found_due_at != DT_NOEND;

		outbox_order_discard(delivery);
		if (comes_back)
			expect(row);
	}
}

/* The transaction has failed, as fail_work() in dispatcher.c. */
static void
fail_work(void)
{
	OutboxDelivery *poison = reading;

	memcpy(rows, rows_before, sizeof(rows));
	memcpy(sights, sights_before, sizeof(sights));
	lane.more = true;
	while (!dlist_is_empty(&fetched))
		outbox_order_discard(dlist_container(OutboxDelivery, link, dlist_pop_head_node(&fetched)));
	reading = NULL;
	if (scanned_key != NULL)
	{
		outbox_order_want(scanned_key);
		outbox_order_end_key_scan(scanned_key);
		scanned_key = NULL;
	}
	while (!dlist_is_empty(&settled))
	{
		dlist_node *node = dlist_tail_node(&settled);

		dlist_delete(node);
		if (fault != NO_UNSETTLED)
			outbox_order_unsettled(dlist_container(OutboxDelivery, link, node));
		dlist_push_head(&waiting, node);
	}
	if (poison != NULL && dice(2) == 0)
	{
		poison->verdict.state = OUTBOX_DEAD;
		add_outcome(poison);
	}
	else if (poison != NULL)
		outbox_order_discard(poison);
}

static void
work(bool may_fail)
{
	memcpy(rows_before, rows, sizeof(rows));
	memcpy(sights_before, sights, sizeof(sights));
	steps_left = may_fail && dice(3) == 0 ? dice(12) : -1;
	if ((dice(3) != 0 && !settle()) || (!paused && !read_rows()))
	{
		fail_work();
		return;
	}
	finish_settled();
	deliver_fetched();
}

/*
 * Producers and operators.
 */
static void
stage(void)
{
	if (nrows == MAX_ROWS)
		return;
	rows[nrows] = (Row) {.key = dice(KEYS), .visible = dice(6) != 0, .due_at = clock_now + (dice(15) == 0 ? 200 : 0), .missing = dice(25) == 0};
	expect(nrows);
	nrows++;
}

static void
commit_late(int row)
{
	if (rows[row].visible)
		return;
	rows[row].visible = true;
	expect(row);
}

static void
change(int row, OutboxState state)
{
	rows[row].state = state;
	rows[row].version++;
	sights[row].known = false;
}

static bool
can_cancel(int row)
{
	return !rows[row].locked && (is_outstanding(row) || (rows[row].visible && rows[row].state == OUTBOX_DEAD && handler.block_on_dead));
}

/* The successor of a cancelled head may be tried now. */
static void
expect_successor(int row)
{
	for (int i = 0; i < nrows; i++)
	{
		if (rows[i].key != rows[row].key || !is_outstanding(i))
			continue;
		expect(i);
		break;
	}
}

static void
cancel(int row)
{
	OutboxQueuePosition key = {rows[row].due_at, id_of(row)};

	if (!can_cancel(row))
		return;
	change(row, OUTBOX_CANCELLED);
	ring_changed(key, key);
	expect_successor(row);
}

static void
requeue(int row)
{
	if (!rows[row].visible || rows[row].locked || (rows[row].state != OUTBOX_DEAD && rows[row].state != OUTBOX_CANCELLED))
		return;
	change(row, OUTBOX_PENDING);
	rows[row].due_at = clock_now;
	rows[row].missing = false;
	expect(row);
}

/* Many at once, which rings for a range. */
static void
cancel_and_requeue_some(void)
{
	OutboxQueuePosition lo = {DT_NOEND};
	OutboxQueuePosition hi = {DT_NOBEGIN};
	bool		some[MAX_ROWS] = {false};

	for (int i = 0; i < nrows; i++)
	{
		OutboxQueuePosition key = {rows[i].due_at, id_of(i)};

		if (dice(3) != 0 || !can_cancel(i))
			continue;
		some[i] = true;
		change(i, OUTBOX_CANCELLED);
		if (outbox_position_cmp(&key, &lo) < 0)
			lo = key;
		if (outbox_position_cmp(&key, &hi) > 0)
			hi = key;
	}
	if (lo.due_at == DT_NOEND)
		return;
	ring_changed(lo, hi);
	for (int i = 0; i < nrows; i++)
	{
		if (some[i])
			expect_successor(i);
	}
	for (int i = 0; i < nrows; i++)
	{
		if (some[i] && dice(2) == 0)
			requeue(i);
	}
}

static void
set_paused(bool to)
{
	if (to && !paused)
	{
		forget_queued(NULL);
		outbox_order_forget_waiting(lane.order);
	}
	else if (!to && paused)
	{
		for (int i = 0; i < nrows; i++)
			expect(i);
	}
	paused = to;
}

static void
disturb(void)
{
	int			row = nrows > 0 ? dice(nrows) : 0;

	if (nrows == 0)
		return;
	switch (dice(9))
	{
		case 0:
			cancel(row);
			break;
		case 1:
			requeue(row);
			break;
		case 2:
			cancel(row);
			requeue(row);
			break;
		case 3:
			rows[row].locked = true;
			break;
		case 4:
		case 5:
			for (int i = 0; i < nrows; i++)
				rows[i].locked = false;
			break;
		case 6:
			commit_late(row);
			break;
		case 7:
			set_paused(dice(3) == 0);
			break;
		case 8:
			if (dice(4) == 0)
				cancel_and_requeue_some();
			break;
	}
}

static void
step(void)
{
	switch (dice(8))
	{
		case 0:
			stage();
			break;
		case 1:
			disturb();
			break;
		case 2:
			clock_now += dice(60);
			break;
		case 3:
			answer_one();
			break;
		case 4:
		case 5:
			send_one();
			break;
		default:
			work(true);
	}
}

/* Nobody disturbs any more, and time passes: everything must end. */
static void
calm_down(void)
{
	bool		left = true;

	set_paused(false);
	for (int i = 0; i < nrows; i++)
	{
		rows[i].locked = false;
		commit_late(i);
	}
	for (int n = 0; n < 3000 && left; n++)
	{
		work(false);
		send_one();
		answer_one();
		clock_now += 20;
		left = false;
		for (int i = 0; i < nrows; i++)
		{
			left = left || is_outstanding(i) || in_memory[i] != NULL;
			if (n % 50 == 49 && handler.block_on_dead && rows[i].state == OUTBOX_DEAD)
				cancel(i);
		}
	}
	if (left)
		complain("something is left waiting");
}

static const char *
play(uint64 seed)
{
	memset(&lane, 0, sizeof(lane));
	memset(&handler, 0, sizeof(handler));
	memset(sights, 0, sizeof(sights));
	memset(in_memory, 0, sizeof(in_memory));
	dlist_init(&lane.queue);
	dlist_init(&fetched);
	dlist_init(&waiting);
	dlist_init(&locked_rows);
	dlist_init(&settled);
	nrows = 0;
	nrequests = 0;
	clock_now = 1000;
	paused = false;
	scanned_key = NULL;
	broken = NULL;
	random_state = seed * 2 + 1;
	for (int i = 0; i < 10; i++)
		dice(2);

	lane.handler_id = 1;
	lane.handler = &handler;
	handler.block_on_dead = dice(3) == 0;
	handler.batch_size = dice(2) == 0 ? 1 : 3;
	outbox_order_create(&lane, NULL);
	for (int i = 0; i < 600 && broken == NULL; i++)
		step();
	if (broken == NULL)
		calm_down();
	for (int i = 0; i < nrows; i++)
	{
		if (in_memory[i] != NULL)
			outbox_order_discard(in_memory[i]);
	}
	outbox_order_free(&lane);
	return broken;
}

static const char *const fault_names[FAULTS] = {
	"", "settling behind one that is held", "not taking back a settlement that failed",
	"not hearing of changes", "sending again what waits for another one that came back"
};

/* The first game, of so many, in which something goes wrong; -1: none. */
static int
first_broken(int games)
{
	for (int seed = 0; seed < games; seed++)
	{
		if (play(seed) != NULL)
			return seed;
	}
	return -1;
}

int
main(int argc, char **argv)
{
	int			games = argc > 1 ? atoi(argv[1]) : 8000;
	int			seed = first_broken(games);

	ok(seed < 0, "%d games, %ld deliveries sent: one at a time and in order, and all of them", games, nsent);
	if (seed >= 0)
		printf("# seed %d: %s\n", seed, broken);
	for (fault = NO_FAULT + 1; fault < FAULTS; fault++)
	{
		seed = first_broken(games);
		ok(seed >= 0, "it shows: %s (%s)", fault_names[fault], seed >= 0 ? broken : "it does not");
	}
	return tap_done();
}
