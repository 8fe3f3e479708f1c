/*-------------------------------------------------------------------------
 *
 * shmem.h
 *		What the launcher, the dispatchers and the backends share.
 *
 * One OutboxShared for the server, with an OutboxDatabase for each database
 * whose extension has been seen.  Nothing process-local is stored here:
 * processes are named by pid and procno, never by pointer.
 *
 * The whole map, and the order of its locks: doc/architecture.md, "Shared
 * memory" and "Locks".
 *
 * Process: any may read; who writes what is said at each field.  Without
 * shared_preload_libraries there is no shared memory, outbox_shared is NULL
 * and every function here says so by returning NULL or doing nothing.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "outbox.h"

#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "common/redaction.h"

#define OUTBOX_MAX_NOTICES 1024
#define OUTBOX_ERROR_LEN 256
#define OUTBOX_MAX_LOCKOUTS 8

/* A notice of the doorbell: what of one handler may have become due. */
typedef enum OutboxNoticeKind
{
	OUTBOX_NOTICE_DUE,			/* outstanding rows in [lo, hi] are new */
	OUTBOX_NOTICE_REREAD,			/* rows in [lo, hi] changed: forget unsent copies, then read them */
	OUTBOX_NOTICE_ON_SETTLED			/* count deliveries have come back from the on_settle workers; no keys */
} OutboxNoticeKind;

typedef struct OutboxNotice
{
	int32		handler_id;
	OutboxNoticeKind kind;
	OutboxQueuePosition lo;
	OutboxQueuePosition hi;
	int32		count;			/* how many rows this stands for */
	pg_uuid_t	first_id;		/* the lowest of their message ids */
	bool		urgent;			/* an operator wants one of them to be sent at once, whatever holds its handler */
	TimestampTz rung_at;		/* when the first transaction that it stands for committed; 0: it did not come that way */
} OutboxNotice;

/* What a dispatcher is doing, for outbox.dispatchers. */
typedef enum OutboxDispatcherState
{
	OUTBOX_DISPATCHER_STOPPED,	/* nobody runs and nobody should */
	OUTBOX_DISPATCHER_STARTING,
	OUTBOX_DISPATCHER_RUNNING,
	OUTBOX_DISPATCHER_DISABLED, /* outbox.enabled is off */
	OUTBOX_DISPATCHER_HELD,		/* this database is a copy: outbox.adopt() */
	OUTBOX_DISPATCHER_LOCKED_OUT,	/* asked to leave by DROP DATABASE and the like */
	OUTBOX_DISPATCHER_TERMINATED,	/* was asked to end, as by pg_terminate_backend(), and comes back */
	OUTBOX_DISPATCHER_FAILED,	/* waits for its restart after an error */
	OUTBOX_DISPATCHER_MISMATCH	/* library and SQL objects differ in version */
} OutboxDispatcherState;

/* The place of a worker that runs functions of users (function_slot.h). */
typedef struct OutboxFunctionSlot
{
	pid_t		pid;			/* 0: nobody there */
	int			procno;
	bool		failed;			/* whoever was there last did not leave of its own accord */
	int32		owner;			/* the handler or schedule whose function is running; 0: none */
	int64		piece;			/* for this row of outbox.on_settle_queue, or this schedule */
	TimestampTz since;
	int64		overran;		/* the piece whose function could not be stopped; 0: none */
} OutboxFunctionSlot;

/* What these places are for: two for handlers, two for schedules. */
typedef enum OutboxFunctionPlace
{
	OUTBOX_PLACE_ON_SETTLE,		/* on_settle functions of all handlers */
	OUTBOX_PLACE_SPARE,			/* the same while the first one is busy with a slow one */
	OUTBOX_PLACE_MESSAGES,		/* schedules that stage messages */
	OUTBOX_PLACE_FUNCTIONS,		/* schedules that run functions */
	OUTBOX_FUNCTION_PLACES
} OutboxFunctionPlace;

/* A text on its way to outbox.redact_function and back (redactions.h), and whose it is. */
typedef enum OutboxRedactionState
{
	OUTBOX_REDACTION_FREE,
	OUTBOX_REDACTION_OURS,		/* the dispatcher's, which is writing or reading it */
	OUTBOX_REDACTION_ASKED,
	OUTBOX_REDACTION_TAKEN,		/* a worker's */
	OUTBOX_REDACTION_ANSWERED
} OutboxRedactionState;

typedef struct OutboxRedaction
{
	OutboxRedactionState state; /* under the slot's mutex; the rest is that one's whose it is */
	pid_t		worker;
	uint64		ticket;
	bool		is_null;
	char		text[OUTBOX_REDACTION_LEN];
} OutboxRedaction;

#define OUTBOX_REDACTIONS 4

/* A delivery whose outcome is in, but could not be written. */
typedef struct OutboxAside
{
	pg_uuid_t	message_id;
	int32		handler_id;
	TimestampTz until;			/* when that is tried again */
} OutboxAside;

/* So many are shown. */
#define OUTBOX_MAX_ASIDE 16

/* How many messages of a topic no handler took (unrouted.h).  All zero: none. */
typedef struct OutboxUnroutedTopic
{
	uint32		hash;
	int32		len;
	char		topic[OUTBOX_TOPIC_MAX];	/* ASCII, as all topics are */
	int64		messages;		/* staged all the same */
	int64		refused;		/* outbox.unrouted was error */
	TimestampTz first_at;
	TimestampTz last_at;
} OutboxUnroutedTopic;

#define OUTBOX_UNROUTED_TOPICS 32

typedef struct OutboxDatabase
{
	slock_t		mutex;

	/*
	 * Whose slot this is; InvalidOid: nobody's.  Changes under both
	 * OutboxShared.lock and mutex.  A backend that remembers a slot compares
	 * this under mutex before it rings: the slot may have changed hands.
	 */
	Oid			dboid;

	/* Written by the dispatcher that owns the slot, under mutex. */
	pid_t		pid;			/* 0: no dispatcher */
	int			procno;			/* whose latch to set; -1: none */
	OutboxDispatcherState state;
	TimestampTz since;
	TimestampTz moved_at;		/* when its loop last came round; a single word, without the mutex */
	int			in_flight;
	bool		sends_nothing;	/* it need not be woken for deliveries */
	char		last_error[OUTBOX_ERROR_LEN];
	char		shortage[OUTBOX_ERROR_LEN]; /* what this machine lacks to send; empty: nothing */
	TimestampTz shortage_since;
	int			naside;
	OutboxAside aside[OUTBOX_MAX_ASIDE];

	/* Who keeps the dispatcher out (lockout.h); 0: free entry.  Under mutex. */
	pid_t		locked_out_by[OUTBOX_MAX_LOCKOUTS];

	/* The extension was created or changed here: the launcher is to look.  Under mutex. */
	bool		wanted;

	/* Written by the workers that hold the places, under mutex; on_settle_wanted by the dispatcher. */
	OutboxFunctionSlot function_slots[OUTBOX_FUNCTION_PLACES];
	bool		on_settle_wanted;	/* some handler has an on_settle function */

	OutboxRedaction redactions[OUTBOX_REDACTIONS];

	/* Written by the settler, under mutex; 0: none. */
	pid_t		settler_pid;

	/* Counted by whoever stages, under mutex. */
	OutboxUnroutedTopic unrouted[OUTBOX_UNROUTED_TOPICS];

	/* There is an outbox here, as far as anybody knows: show it.  Under mutex. */
	bool		installed;

	/* The doorbell, under mutex: rung by committing backends, emptied by the dispatcher. */
	int			nnotices;
	OutboxNotice notices[OUTBOX_MAX_NOTICES];
	bool		overflow;
	TimestampTz overflow_due;	/* lowest due_at that did not fit */
	bool		rescan;			/* somebody asks for a full rescan */
	TimestampTz end_noted;		/* the earliest time at which something new expires; DT_NOEND: nothing does */
	TimestampTz end_known;		/* the same of what the dispatcher knows of */

	/* Bumped at commit by whoever changed a handler, its status or the installation. */
	pg_atomic_uint32 handler_generation;

	/* The same, but only where routes may have changed, which every session that stages reads. */
	pg_atomic_uint32 route_generation;

	/* The same by whoever changed when something is to be done for a schedule. */
	pg_atomic_uint32 schedule_generation;

	/* Set once the id generator has seen this database's highest message id. */
	pg_atomic_uint32 ids_seeded;
} OutboxDatabase;

typedef struct OutboxShared
{
	LWLock	   *lock;			/* allocation of database slots; NULL: the only one is given away for good */

	slock_t		mutex;
	pid_t		launcher_pid;
	int			launcher_procno;	/* -1: none */
	bool		launcher_look;	/* pg_database changed, or a slot is wanted */
	bool		launcher_look_everywhere;	/* some database without a slot may have gained the extension */
	int			launcher_quick_ends;	/* launchers in a row that did not live long */
	TimestampTz launcher_started;
	TimestampTz launcher_waits_until;	/* it starts nothing before that; written by the launcher alone */

	/* Crashes in a row of which this memory is what came after the last; set when it is made. */
	int			crashes;

	/* Until when workers that merely help are to make room (worker.h). */
	pg_atomic_uint64 workers_lack_until;

	/* The highest message id timestamp handed out, in the 60-bit unit of message_id.h. */
	pg_atomic_uint64 last_id;

	int			ndatabases;		/* outbox.max_databases at start */
	OutboxDatabase databases[FLEXIBLE_ARRAY_MEMBER];
} OutboxShared;

extern OutboxShared *outbox_shared;

/* Ask for shared memory (from _PG_init, in the postmaster) and set it up. */
extern void outbox_shmem_init(void);

/*
 * Memory of the same kind for a single database, on a server that has none
 * (errand.h): how large it is, making it, and taking it for the server's from
 * now on, in a process that has not asked for a slot yet.
 */
extern Size outbox_shmem_single_size(void);
extern void outbox_shmem_single_init(OutboxShared *memory, Oid dboid);
extern void outbox_shmem_use(OutboxShared *memory);

/*
 * This backend's database slot, or NULL when the library was not preloaded
 * or the slots have run out.  Allocates one on first use, so it may take an
 * LWLock: call it from stage() and friends, never from a commit callback.
 * Rows of the extension keep it from being dropped, so whoever has written
 * some keeps the slot until the end of the transaction.
 */
extern OutboxDatabase *outbox_my_database(void);

/* The slot found by the last outbox_my_database(), without any lock; may be somebody else's by now. */
extern OutboxDatabase *outbox_remembered_database(void);

/* The slot of a database if it has one, else NULL.  Takes the LWLock. */
extern OutboxDatabase *outbox_find_database(Oid dboid);

/* The slot of a database, allocated if need be; NULL when all are taken. */
extern OutboxDatabase *outbox_reserve_database(Oid dboid);

/*
 * Give the slot of a database back, unless a dispatcher runs there or the
 * launcher is asked to look there.  Launcher only.
 */
extern void outbox_release_database(Oid dboid);

/* How long no dispatcher is started after so many crashes in a row. */
extern int64 outbox_crash_pause(int crashes);

/*
 * A process of ours that is connected to the database, its dispatcher before
 * those that end with it: its pid, 0 if there is none.  Caller holds the
 * slot's mutex.
 */
extern pid_t outbox_database_process_locked(const OutboxDatabase *db);

/* Wake the launcher; with look, have it read pg_database and the slots' wishes.  Never fails. */
extern void outbox_wake_launcher(bool look);

/* Set the latch of a process by procno; nothing happens for -1.  Never fails. */
extern void outbox_set_latch(int procno);

#endif							/* OUTBOX_SHMEM_H */
