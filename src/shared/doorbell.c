/*-------------------------------------------------------------------------
 *
 * doorbell.c
 *		How a committing transaction tells the dispatcher what is new.
 *
 * A transaction's first few keys are kept exactly; beyond that, one range
 * per handler.  A few exact keys matter to a long transaction that staged
 * at its start and at its end: as a range they would make the dispatcher
 * read everything settled in between.
 *
 * All memory is taken while the transaction runs.  At commit the notes are
 * copied into shared memory under a spinlock; when that is full a notice is
 * merged into one of the same handler, and failing that the overflow flag
 * makes the dispatcher read again from the lowest position that did not fit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/session.h"
#include "compat.h"
#include "shared/doorbell.h"
#include "shared/prepared.h"

#define MAX_EXACT_NOTES 16

/* How many notices are left under one hold of the spinlock. */
#define RING_SLICE 32

/* The notes of the running transaction: exact ones first, then a range per handler. */
static OutboxNotice *notes = NULL;
static int	nnotes = 0;
static int	max_notes = 0;
static int	nexact = 0;

/* Where a handler's range is in notes, so that staging many messages stays linear. */
typedef struct RangeEntry
{
	int32		handler_id;
	char		status;
	int			note;
} RangeEntry;

#define SH_PREFIX range
#define SH_ELEMENT_TYPE RangeEntry
#define SH_KEY_TYPE int32
#define SH_KEY handler_id
#define SH_HASH_KEY(tb, key) ((uint32) (key) * 2654435769u)
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static range_hash *ranges = NULL;

static const OutboxDoorbellListener *listener = NULL;

static bool note_handlers = false;
static bool note_routes = false;	/* only together with note_handlers */
static bool note_launcher = false;
static bool note_rescan = false;
static bool note_schedules = false;
static TimestampTz note_end = DT_NOEND; /* only together with some of notes, or by SQL */

void
outbox_doorbell_listen(const OutboxDoorbellListener *new_listener)
{
	listener = new_listener;
}

static OutboxNotice *
append_note(void)
{
	if (nnotes == max_notes)
	{
		int			size = max_notes == 0 ? 64 : max_notes * 2;

		if (notes == NULL)
			notes = MemoryContextAlloc(TopMemoryContext, sizeof(OutboxNotice) * size);
		else
			notes = repalloc_huge(notes, sizeof(OutboxNotice) * size);
		max_notes = size;
	}
	return &notes[nnotes++];
}

/* Make a notice stand for what another one stands for as well. */
static void
widen(OutboxNotice *notice, const OutboxNotice *other)
{
	if (outbox_position_cmp(&other->lo, &notice->lo) < 0)
		notice->lo = other->lo;
	if (outbox_position_cmp(&other->hi, &notice->hi) > 0)
		notice->hi = other->hi;
	if (memcmp(other->first_id.data, notice->first_id.data, UUID_LEN) < 0)
		notice->first_id = other->first_id;
	notice->count += other->count;
	notice->urgent |= other->urgent;
	if (other->rung_at != 0 && other->rung_at < notice->rung_at)
		notice->rung_at = other->rung_at;
}

/* Find the note that covers a handler's range, or make one. */
static void
note_range(const OutboxNotice *notice)
{
	RangeEntry *entry;
	OutboxNotice *note;
	bool		found;

	if (ranges == NULL)
		ranges = range_create(TopMemoryContext, 64, NULL);

	entry = range_lookup(ranges, notice->handler_id);
	if (entry != NULL)
	{
		note = &notes[entry->note];
		widen(note, notice);
		/* Forgetting unsent copies and reading them again includes reading what is new. */
		if (notice->kind == OUTBOX_NOTICE_REREAD)
			note->kind = notice->kind;
		return;
	}

	note = append_note();
	*note = *notice;
	entry = range_insert(ranges, notice->handler_id, &found);
	entry->note = nnotes - 1;
}

static void
note_one(const OutboxNotice *notice)
{
	if (outbox_my_database() == NULL)
		return;

	if (nexact < MAX_EXACT_NOTES)
	{
		*append_note() = *notice;
		nexact++;
		return;
	}
	note_range(notice);
}

void
outbox_doorbell_note(int32 handler_id, OutboxNoticeKind kind,
					 TimestampTz due_at, const pg_uuid_t *id)
{
	OutboxQueuePosition key = {due_at, *id};
	OutboxNotice notice = {handler_id, kind, key, key, 1, *id};

	note_one(&notice);
}

void
outbox_doorbell_note_end(TimestampTz end_at)
{
	if (end_at < note_end && outbox_my_database() != NULL)
		note_end = end_at;
}

bool
outbox_doorbell_changed(int32 handler_id)
{
	/* In the range of a handler, if it has one, its kind says so for all of them. */
	for (int i = 0; i < nnotes; i++)
	{
		if (notes[i].kind == OUTBOX_NOTICE_REREAD && notes[i].handler_id == handler_id)
			return true;
	}
	return false;
}

void
outbox_doorbell_note_handlers(void)
{
	if (outbox_my_database() != NULL)
		note_handlers = note_routes = true;
}

void
outbox_doorbell_note_status(void)
{
	if (outbox_my_database() != NULL)
		note_handlers = true;
}

void
outbox_doorbell_note_schedules(void)
{
	if (outbox_my_database() != NULL)
		note_schedules = true;
}

void
outbox_doorbell_note_launcher(void)
{
	/* Where no slot is left, the launcher looks at every database instead. */
	(void) outbox_my_database();
	note_launcher = true;
}

bool
outbox_doorbell_handlers_noted(void)
{
	return note_handlers;
}

void
outbox_doorbell_note_rescan(void)
{
	/* Also now: what this transaction claims itself must not start from where others had come to. */
	listener->rescan(MyDatabaseId);
	if (outbox_my_database() != NULL)
		note_rescan = true;
}

/* Put a notice that does not fit where it loses least.  Caller holds the mutex. */
static void
ring_overflow(OutboxDatabase *db, const OutboxNotice *notice)
{
	for (int i = db->nnotices - 1; i >= 0; i--)
	{
		OutboxNotice *other = &db->notices[i];

		if (other->handler_id == notice->handler_id && other->kind == notice->kind)
		{
			widen(other, notice);
			return;
		}
	}
	if (!db->overflow || notice->lo.due_at < db->overflow_due)
		db->overflow_due = notice->lo.due_at;
	db->overflow = true;
}

static void
ring_all(OutboxDatabase *db, const OutboxNotice *notices, int n)
{
	int			done = 0;

	while (done < n)
	{
		int			end = Min(n, done + RING_SLICE);

		SpinLockAcquire(&db->mutex);
		if (db->dboid != MyDatabaseId)
			end = done = n;		/* the extension is gone, and its slot is somebody else's */
		for (; done < end; done++)
		{
			if (db->nnotices < OUTBOX_MAX_NOTICES)
				db->notices[db->nnotices++] = notices[done];
			else
				ring_overflow(db, &notices[done]);
		}
		SpinLockRelease(&db->mutex);
	}
}

/* Something expires then.  True if the dispatcher has to hear of it: it knows of nothing that does before. */
static bool
ring_end(OutboxDatabase *db, TimestampTz end_at)
{
	bool		news = false;

	SpinLockAcquire(&db->mutex);
	if (db->dboid == MyDatabaseId)
	{
		news = end_at < db->end_known;
		db->end_noted = Min(db->end_noted, end_at);
	}
	SpinLockRelease(&db->mutex);
	return news;
}

/*
 * Set the latch of whoever dispatches this database, outside the mutex.  One
 * that sends nothing need not hear of deliveries: it empties the doorbell
 * after it has said that it sends again.
 */
static void
wake_dispatcher(OutboxDatabase *db, bool if_it_sends)
{
	int			procno;

	SpinLockAcquire(&db->mutex);
	procno = db->procno;
	if (if_it_sends && db->sends_nothing)
		procno = -1;
	SpinLockRelease(&db->mutex);
	outbox_set_latch(procno);
}

/* Have the launcher look at this database. */
static void
ring_launcher(OutboxDatabase *db)
{
	bool		noted = false;

	if (outbox_shared == NULL)
		return;
	if (db != NULL)
	{
		SpinLockAcquire(&db->mutex);
		if (db->dboid == MyDatabaseId)
			db->wanted = db->installed = noted = true;
		SpinLockRelease(&db->mutex);
	}
	if (!noted)
	{
		SpinLockAcquire(&outbox_shared->mutex);
		outbox_shared->launcher_look_everywhere = true;
		SpinLockRelease(&outbox_shared->mutex);
	}
	outbox_wake_launcher(true);
}

/*
 * What pull handlers have to hear of goes straight to where their claims
 * and waiters are; the rest stays in notes, for the dispatcher.  Returns how
 * many are left.
 */
static int
ring_pull_handlers(void)
{
	TimestampTz now = nnotes > 0 ? GetCurrentTimestamp() : 0;
	int			left = 0;

	for (int i = 0; i < nnotes; i++)
	{
		if (listener->ring(MyDatabaseId, &notes[i], now))
			continue;
		notes[left] = notes[i];
		notes[left++].rung_at = now;
	}
	return left;
}

static void
forget_notes(void)
{
	/* Clears the table in place; nothing is freed or allocated. */
	if (nnotes > nexact && ranges != NULL)
		range_reset(ranges);
	nnotes = 0;
	nexact = 0;
	note_handlers = false;
	note_routes = false;
	note_launcher = false;
	note_rescan = false;
	note_schedules = false;
	note_end = DT_NOEND;
}

void
outbox_doorbell_before_commit(void)
{
	if (note_launcher && outbox_shared == NULL)
		ereport(NOTICE,
				(errmsg("outbox is not preloaded: messages can be staged and claimed, but nothing is pushed"),
				 errhint("Add this line to postgresql.conf and restart the server: shared_preload_libraries = 'outbox'")));
}

void
outbox_doorbell_at_commit(void)
{
	OutboxDatabase *db;

	if (nnotes == 0 && !note_handlers && !note_launcher && !note_rescan && !note_schedules && note_end == DT_NOEND)
		return;

	/* Whoever noted something has looked its slot up; looking again here could lock. */
	db = outbox_remembered_database();
	if (db != NULL && (nnotes > 0 || note_handlers || note_rescan || note_schedules || note_end != DT_NOEND))
	{
		int			left = ring_pull_handlers();
		bool		ends = note_end != DT_NOEND && ring_end(db, note_end);

		if (note_routes)
			pg_atomic_fetch_add_u32(&db->route_generation, 1);
		if (note_handlers)
		{
			pg_atomic_fetch_add_u32(&db->handler_generation, 1);
			listener->handlers_changed(MyDatabaseId);
		}
		if (note_schedules)
			pg_atomic_fetch_add_u32(&db->schedule_generation, 1);
		if (note_rescan)
		{
			SpinLockAcquire(&db->mutex);
			db->rescan = true;
			SpinLockRelease(&db->mutex);
			listener->rescan(MyDatabaseId);
		}
		ring_all(db, notes, left);
		/* What expires does so while nothing is sent, too. */
		if (left > 0 || note_handlers || note_rescan || note_schedules || ends)
			wake_dispatcher(db, !note_handlers && !note_rescan && !ends);
	}
	if (note_launcher)
		ring_launcher(db);
	forget_notes();
}

void
outbox_doorbell_at_abort(void)
{
	if (nnotes != 0 || note_handlers || note_launcher || note_rescan || note_schedules || note_end != DT_NOEND)
		forget_notes();
}

void
outbox_doorbell_before_prepare(void)
{
	outbox_prepared_mark((nnotes > 0 || note_rescan || note_schedules || note_end != DT_NOEND ? OUTBOX_PREPARED_ROWS : 0) |
						 (note_handlers || note_launcher ? OUTBOX_PREPARED_HANDLERS : 0));
}

void
outbox_doorbell_note_prepared(int marks)
{
	/* Of a schedule, too, or only: when everything is looked at, schedules are. */
	if (marks & OUTBOX_PREPARED_ROWS)
		outbox_doorbell_note_rescan();
	if (marks & OUTBOX_PREPARED_HANDLERS)
	{
		outbox_doorbell_note_handlers();
		/* It may have created the extension. */
		if (outbox_remembered_database() == NULL || outbox_remembered_database()->pid == 0)
			outbox_doorbell_note_launcher();
	}
}

void
outbox_doorbell_at_prepare(void)
{
	/* The notes cannot travel with a prepared transaction; COMMIT PREPARED finds their marks. */
	outbox_doorbell_at_abort();
}

void
outbox_doorbell_ring_now(OutboxDatabase *db, const OutboxNotice *notice)
{
	ring_all(db, notice, 1);
	wake_dispatcher(db, false);
}

int
outbox_doorbell_empty(OutboxDatabase *db, OutboxNotice *out,
					  bool *overflow, TimestampTz *overflow_due, bool *rescan, TimestampTz end_known, TimestampTz *end_noted)
{
	int			n;

	SpinLockAcquire(&db->mutex);
	n = db->nnotices;
	if (n > 0)
		memcpy(out, db->notices, sizeof(OutboxNotice) * n);
	db->nnotices = 0;
	*overflow = db->overflow;
	*overflow_due = db->overflow_due;
	*rescan = db->rescan;
	db->overflow = false;
	db->rescan = false;
	*end_noted = db->end_noted;
	db->end_noted = DT_NOEND;
	db->end_known = Min(end_known, *end_noted);
	SpinLockRelease(&db->mutex);
	return n;
}

PG_FUNCTION_INFO_V1(outbox_sql_ring);
PG_FUNCTION_INFO_V1(outbox_sql_ring_end);
PG_FUNCTION_INFO_V1(outbox_sql_ring_handlers);
PG_FUNCTION_INFO_V1(outbox_sql_ring_status);
PG_FUNCTION_INFO_V1(outbox_sql_ring_rescan);
PG_FUNCTION_INFO_V1(outbox_sql_ring_launcher);
PG_FUNCTION_INFO_V1(outbox_sql_ring_schedules);

/* The kinds of outbox_internal.ring(). */
#define RING_DUE 0
#define RING_CHANGED 1
#define RING_URGENT 2

/* outbox_internal.ring(handler_id, kind, due_at, id) */
Datum
outbox_sql_ring(PG_FUNCTION_ARGS)
{
	int32		kind = PG_GETARG_INT32(1);
	OutboxQueuePosition key = {PG_GETARG_TIMESTAMPTZ(2), *PG_GETARG_UUID_P(3)};
	OutboxNotice notice = {PG_GETARG_INT32(0), OUTBOX_NOTICE_DUE, key, key, 1, key.id};

	if (kind < RING_DUE || kind > RING_URGENT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid kind of ring: %d", kind)));
	if (kind == RING_CHANGED)
		notice.kind = OUTBOX_NOTICE_REREAD;
	notice.urgent = kind == RING_URGENT;
	note_one(&notice);
	PG_RETURN_VOID();
}

/* outbox_internal.ring_end(end_at) */
Datum
outbox_sql_ring_end(PG_FUNCTION_ARGS)
{
	outbox_doorbell_note_end(PG_GETARG_TIMESTAMPTZ(0));
	PG_RETURN_VOID();
}

/* outbox_internal.ring_handlers() */
Datum
outbox_sql_ring_handlers(PG_FUNCTION_ARGS)
{
	/* The relcache message is what invalidates the routes of every backend, preloaded or not. */
	CacheInvalidateRelcacheByRelid(outbox_relation_oid("handler", false));
	outbox_doorbell_note_handlers();
	PG_RETURN_VOID();
}

/* outbox_internal.ring_status() */
Datum
outbox_sql_ring_status(PG_FUNCTION_ARGS)
{
	outbox_doorbell_note_status();
	PG_RETURN_VOID();
}

/* outbox_internal.ring_rescan() */
Datum
outbox_sql_ring_rescan(PG_FUNCTION_ARGS)
{
	outbox_doorbell_note_rescan();
	PG_RETURN_VOID();
}

/* outbox_internal.ring_launcher() */
Datum
outbox_sql_ring_launcher(PG_FUNCTION_ARGS)
{
	outbox_doorbell_note_launcher();
	PG_RETURN_VOID();
}

/* outbox_internal.ring_schedules() */
Datum
outbox_sql_ring_schedules(PG_FUNCTION_ARGS)
{
	outbox_doorbell_note_schedules();
	PG_RETURN_VOID();
}
