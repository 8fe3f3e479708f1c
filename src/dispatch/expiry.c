/*-------------------------------------------------------------------------
 *
 * expiry.c
 *		Deliveries that have expired before they went out.
 *
 * See expiry.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/itup.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/expiry.h"
#include "shared/counting.h"
#include "shared/shmem.h"
#include "stage/call_off.h"
#include "table/delivery.h"
#include "table/relation.h"
#include "worker/clock.h"
#include "worker/failure.h"

/* Of one look: deliveries that are cancelled, and entries of the index that are examined. */
#define MAX_CANCELLED 1000
#define MAX_ENTRIES 5000

/* Of one that cancels each apart: more subtransactions slow down everybody's snapshots. */
#define MAX_APART 50

/* Entries of what has gone since that are stepped over to find the next end. */
#define MAX_ENTRIES_AHEAD 100

/* When a table lock is in the way. */
#define LOCKED_RETRY_US (1 * USECS_PER_SEC)

/* Rows that somebody holds, or that cannot be cancelled, are looked at again after a while, which doubles as long as it is of no use. */
#define HELD_RETRY_US (1 * USECS_PER_SEC)
#define HELD_RETRY_MAX_US (60 * USECS_PER_SEC)

/* A look that has met little but what has gone is followed by a rest of so many times its duration. */
#define LOOK_DUTY 10

/* A step forward of so much is not believed at once, but after so long. */
#define DOUBTFUL_STEP_US (10 * USECS_PER_SEC)
#define DOUBT_US (60 * USECS_PER_SEC)

#define EXPIRED_ERROR "it had not been delivered when it expired"

/* Where a look stands in the index: all of that end and message has been seen if after. */
typedef struct Place
{
	TimestampTz end_at;
	pg_uuid_t	id;
} Place;

static const Place beginning = {DT_NOBEGIN, {{0}}};

static Place place = {DT_NOBEGIN, {{0}}};
static TimestampTz expected = DT_NOBEGIN;	/* by the wall clock */
static TimestampTz not_before = DT_NOBEGIN;	/* a lock was in the way, or there was little to do */

/* What somebody holds does not keep those behind it: the looks go on, and come back here. */
static bool was_held = false;
static Place held = {DT_NOBEGIN, {{0}}};	/* the first one */
static TimestampTz held_again = DT_NOEND;	/* when to come back; DT_NOEND: not before the looks have come to the end */
static int64 held_pause = HELD_RETRY_US;

/* Something fails: each is cancelled in a subtransaction, until none has failed from one coming back to the next. */
static bool apart = false;
static int	nfailed = 0;		/* since then */
static char failure[OUTBOX_ERROR_LEN];	/* the latest */

static int64 doubt = 0;			/* by so much is the wall clock ahead of what is believed */
static TimestampTz doubt_ends = DT_NOBEGIN;
static int64 ahead_before = 0;	/* of the wall clock, at the last look at it */

/* What is open during a look. */
typedef struct Look
{
	OutboxDeliveryTable table;
	Relation	index;
	IndexScanDesc scan;
	ScanKeyData row[2];
	Place		start;			/* what row points at */
	TimestampTz clock;			/* what is over by then has expired */
	OutboxCallOff call_off;
	int			entries;
	int			cancelled;
	int			failed;
} Look;

static int
compare_places(const Place *a, const Place *b)
{
	if (a->end_at != b->end_at)
		return a->end_at < b->end_at ? -1 : 1;
	return memcmp(a->id.data, b->id.data, UUID_LEN);
}

/* The looks come back there. */
static void
hold(const Place *at)
{
	if (was_held && compare_places(at, &held) >= 0)
		return;
	was_held = true;
	held = *at;
}

/* It may have committed after a look went past.  While looks go on they are not sent back, or they might never end. */
void
outbox_expiry_expect(TimestampTz end_at)
{
	Place		at = {end_at};

	if (expected == DT_NOBEGIN)
	{
		if (end_at != DT_NOBEGIN && end_at <= place.end_at)
			hold(&at);
		return;
	}
	expected = Min(expected, end_at);
	if (end_at <= place.end_at)
		place = at;
}

TimestampTz
outbox_expiry_expected(void)
{
	return expected;
}

void
outbox_expiry_request(void)
{
	outbox_expiry_expect(DT_NOBEGIN);
	place = beginning;
}

void
outbox_expiry_watch_clock(TimestampTz now)
{
	int64		ahead = outbox_to_wall(now) - now;
	int64		step = ahead - ahead_before;

	ahead_before = ahead;
	if (now >= doubt_ends)
		doubt = 0;
	if (step > DOUBTFUL_STEP_US)
	{
		doubt += step;
		doubt_ends = now + DOUBT_US;
	}
	else if (doubt > 0)
		doubt = Max(0, doubt + step);
}

/* The time by which what is over has expired for certain. */
static TimestampTz
believed_time(TimestampTz now)
{
	return outbox_to_wall(now) - (now < doubt_ends ? doubt : 0);
}

TimestampTz
outbox_expiry_doubt_ends(void)
{
	return doubt_ends;
}

TimestampTz
outbox_expiry_next(void)
{
	TimestampTz next = outbox_to_steady(expected);

	/* What is in doubt becomes certain when the believed clock comes there, or the wall clock is believed. */
	if (doubt > 0 && !TIMESTAMP_NOT_FINITE(next))
		next = Max(next, Min(next + doubt, doubt_ends));
	return Max(Min(next, held_again), not_before);
}

OutboxFreshness
outbox_expiry_judge(const OutboxDelivery *delivery, TimestampTz now)
{
	if (delivery->end_at == DT_NOEND || delivery->end_at > outbox_to_wall(now))
		return OUTBOX_FRESH;
	return delivery->end_at <= believed_time(now) ? OUTBOX_EXPIRED : OUTBOX_DOUBTFUL;
}

void
outbox_expiry_verdict(OutboxDelivery *delivery)
{
	delivery->verdict.state = OUTBOX_CANCELLED;
	strlcpy(delivery->verdict.code, OUTBOX_CODE_EXPIRED, sizeof(delivery->verdict.code));
	delivery->error = MemoryContextStrdup(TopMemoryContext, EXPIRED_ERROR);
}

/* Of push deliveries only this process knows. */
static bool
has_gone_out(const Look *look, const OutboxDeliveryRow *row)
{
	const OutboxDelivery *delivery = outbox_delivery_find(&row->key.id, row->handler_id);

	if (row->state == OUTBOX_LEASED && row->key.due_at > look->clock)
		return true;
	return delivery != NULL && delivery->phase != OUTBOX_PHASE_QUEUED;
}

/* Start the scan at that end and message, or behind that. */
static void
start_scan(Look *look, const Place *at)
{
	ScanKeyData key;

	look->start = *at;
	ScanKeyEntryInitialize(&look->row[0], SK_ROW_MEMBER, 1, BTGreaterEqualStrategyNumber, TIMESTAMPTZOID, InvalidOid,
						   F_TIMESTAMPTZ_CMP, TimestampTzGetDatum(look->start.end_at));
	ScanKeyEntryInitialize(&look->row[1], SK_ROW_MEMBER | SK_ROW_END, 2, BTGreaterEqualStrategyNumber, UUIDOID, InvalidOid,
						   F_UUID_CMP, UUIDPGetDatum(&look->start.id));
	memset(&key, 0, sizeof(key));
	key.sk_flags = SK_ROW_HEADER;
	key.sk_attno = 1;
	key.sk_strategy = BTGreaterEqualStrategyNumber;
	key.sk_argument = PointerGetDatum(look->row);
	index_rescan(look->scan, &key, 1, NULL, 0);
}

static Place
entry_place(IndexScanDesc scan)
{
	Place		at;
	bool		isnull;

	at.end_at = DatumGetTimestampTz(index_getattr(scan->xs_itup, 1, scan->xs_itupdesc, &isnull));
	at.id = *DatumGetUUIDP(index_getattr(scan->xs_itup, 2, scan->xs_itupdesc, &isnull));
	return at;
}

/* The scan is on the first entry that is not over: when something is, at the earliest. */
static TimestampTz
look_ahead(Look *look)
{
	for (int i = 0;; i++)
	{
		TimestampTz end_at = entry_place(look->scan).end_at;

		if (i == MAX_ENTRIES_AHEAD || index_fetch_heap(look->scan, look->table.slot))
			return end_at;
		if (index_getnext_tid(look->scan, ForwardScanDirection) == NULL)
			return DT_NOEND;
	}
}

/* By itself: what it opens goes away with its subtransaction. */
static bool
call_off_alone(const Look *look, const OutboxDeliveryRow *row)
{
	OutboxCallOff call_off = {.code = look->call_off.code, .error = look->call_off.error};
	OutboxDeliveryTable table;
	bool		done;

	outbox_deliveries_open(&table, true);
	done = outbox_deliveries_find_at(&table, &look->table.slot->tts_tid, &row->key.id, row->handler_id) &&
		outbox_call_off(&table, &call_off);
	outbox_deliveries_close(&table);
	outbox_call_off_end(&call_off);
	return done;
}

/* The current error came with this delivery.  One that may end by itself came with the look. */
static void
note_failure(Look *look, ErrorData *edata)
{
	if (outbox_failure_may_end(edata->sqlerrcode))
		ReThrowError(edata);
	look->failed++;
	nfailed++;
	strlcpy(failure, edata->message, sizeof(failure));
}

static bool
try_to_call_off(Look *look, const OutboxDeliveryRow *row)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	MemoryContext own = AllocSetContextCreate(context, "outbox expired delivery", ALLOCSET_DEFAULT_SIZES);
	volatile bool done = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(own);
	PG_TRY();
	{
		done = call_off_alone(look, row);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		done = false;
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (!outbox_failure_may_end(edata->sqlerrcode))
			outbox_failure_report(edata, outbox_steady_time());
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		note_failure(look, edata);
		FreeErrorData(edata);
	}
	PG_END_TRY();
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(context);
	MemoryContextDelete(own);
	return done;
}

/* The row of the entry has an end that is over. */
static void
visit(Look *look, const Place *entry)
{
	OutboxDeliveryRow row;

	outbox_deliveries_read(look->table.slot, &row);
	if (has_gone_out(look, &row))
		return;
	if (apart ? try_to_call_off(look, &row) : outbox_call_off(&look->table, &look->call_off))
		look->cancelled++;
	/* Whoever has it may let it go as it was; what makes it fail may be mended. */
	else
		hold(entry);
}

static int
most_of_a_look(void)
{
	return apart ? MAX_APART : MAX_CANCELLED;
}

static bool
has_enough(const Look *look)
{
	return look->cancelled + look->failed >= most_of_a_look() || look->entries >= MAX_ENTRIES;
}

/* Go on from there, moving at along; returns when the next look is due, by the wall clock. */
static TimestampTz
go_through(Look *look, Place *at)
{
	start_scan(look, at);
	while (index_getnext_tid(look->scan, ForwardScanDirection) != NULL)
	{
		Place		entry = entry_place(look->scan);

		CHECK_FOR_INTERRUPTS();
		if (entry.end_at > look->clock)
		{
			*at = entry;
			return look_ahead(look);
		}
		/* All handlers of a message in one look: then the next one does not meet them again. */
		if (has_enough(look) && compare_places(&entry, at) != 0)
		{
			*at = entry;
			return DT_NOBEGIN;
		}
		*at = entry;
		look->entries++;
		if (index_fetch_heap(look->scan, look->table.slot))
			visit(look, &entry);
	}
	at->end_at = Max(at->end_at, look->clock);
	return DT_NOEND;
}

/* What a look touches. */
static const OutboxTableLock look_locks[] = {
	{"delivery", RowExclusiveLock}, {"receipt", RowExclusiveLock}
};

/* In C rather than SQL: no plan can go wrong, and nothing is waited for. */
static TimestampTz
look_through(Look *look, Place *at)
{
	TimestampTz next;

	outbox_deliveries_open(&look->table, true);
	look->index = outbox_deliveries_index(&look->table, "delivery_expires");
	look->scan = outbox_index_beginscan(look->table.rel, look->index, GetActiveSnapshot(), 1);
	/* The end of an entry is needed even where its row is dead. */
	look->scan->xs_want_itup = true;
	next = go_through(look, at);
	index_endscan(look->scan);
	index_close(look->index, NoLock);
	outbox_deliveries_close(&look->table);
	outbox_call_off_end(&look->call_off);
	return next;
}

/* Where to begin: where the last look ended, or at what was held. */
static Place
begin_at(TimestampTz now)
{
	if (held_again > now)
		return place;
	was_held = false;
	held_again = DT_NOEND;
	nfailed = 0;
	return compare_places(&held, &place) < 0 ? held : place;
}

/* The looks have come to what is still to come. */
static void
come_back_to_held(TimestampTz now)
{
	if (nfailed == 0)
		apart = false;
	if (!was_held)
		held_pause = HELD_RETRY_US;
	else if (held_again == DT_NOEND)
	{
		held_again = now + held_pause;
		held_pause = Min(2 * held_pause, HELD_RETRY_MAX_US);
	}
}

/* What would be checked at commit is checked with each. */
static void
check_at_once(void)
{
	ConstraintsSetStmt statement = {.type = T_ConstraintsSetStmt};

	AfterTriggerSetState(&statement);
}

bool
outbox_expiry_failed(bool lasts)
{
	bool		was_apart = apart;

	apart = apart || lasts;
	return was_apart || !lasts;
}

const char *
outbox_expiry_problem(void)
{
	static char text[OUTBOX_ERROR_LEN];

	if (nfailed == 0)
		return NULL;
	snprintf(text, sizeof(text), "expired deliveries that cannot be cancelled, the latest for: %s", failure);
	return text;
}

bool
outbox_expiry_look(TimestampTz now)
{
	Look		look = {.clock = believed_time(now), .call_off = {.code = OUTBOX_CODE_EXPIRED, .error = EXPIRED_ERROR}};
	TimestampTz begin = outbox_steady_time();
	Place		at;

	if (!outbox_lock_all_if_free(look_locks, lengthof(look_locks)))
	{
		not_before = now + LOCKED_RETRY_US;
		return false;
	}
	if (apart)
		check_at_once();
	at = begin_at(now);
	expected = look_through(&look, &at);
	place = at;
	not_before = DT_NOBEGIN;
	if (expected != DT_NOBEGIN)
		come_back_to_held(now);
	else if (look.cancelled < most_of_a_look())
		not_before = now + (outbox_steady_time() - begin) * LOOK_DUTY;
	return true;
}
