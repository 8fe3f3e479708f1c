/*-------------------------------------------------------------------------
 *
 * pull_state.h
 *		What backends share about each pull handler: positions and waiters.
 *
 * One OutboxPullState for each pull handler that somebody claims from or
 * waits on, in a table of fixed size in shared memory.  Losing one is always
 * harmless: a handler without a state is read from the beginning, and the
 * one that was used least recently gives way when the table is full.
 * After a crash the table is empty.
 *
 * Process: any backend, a committing or aborting one too: these functions
 * take spinlocks only and never fail.  Without shared memory there are
 * no states and outbox_pull_state() returns NULL.
 *
 * What the positions mean and why they lose nothing is said in watermark.h,
 * how waiters are woken in waiters.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PULL_STATE_H
#define OUTBOX_PULL_STATE_H

#include "outbox.h"

#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"

#define OUTBOX_PULL_STATES 256	/* pull handlers in use at a time, on the server */
#define OUTBOX_POSITIONS 4		/* consumer versions with a position of their own */
#define OUTBOX_STRAYS 128		/* keys behind the position that are still to be looked at */
#define OUTBOX_RECENT 128		/* keys that appeared while a claim was being made */
#define OUTBOX_CLAIMANTS 64		/* transactions that hold claimed rows */
#define OUTBOX_KEY_FLOORS 16	/* message keys with a position of their own */
#define OUTBOX_FLOOR_KEY_LEN 255

/* Where claims of one consumer version start. */
typedef struct OutboxPosition
{
	bool		used;
	int32		version;
	uint32		stamp;			/* for finding the least recently used one */
	OutboxQueuePosition key;
} OutboxPosition;

/* Ordered handlers: nothing of this message key below this id is outstanding. */
typedef struct OutboxKeyFloor
{
	int			len;			/* of the key; -1: free */
	uint32		stamp;
	pg_uuid_t	id;
	char		key[OUTBOX_FLOOR_KEY_LEN];
} OutboxKeyFloor;

/* What a transaction reported when it ended. */
typedef struct OutboxReport
{
	OutboxQueuePosition key;			/* of a delivery, or the lowest of several */
	pg_uuid_t	id;				/* of its message, or the lowest of several */
	bool		several;
} OutboxReport;

typedef struct OutboxPullState
{
	/* Database OID and handler id in one word; 0: never used.  Changed under both mutexes. */
	pg_atomic_uint64 owner;

	slock_t		mutex;			/* guards everything below */
	uint32		incarnation;	/* how often the entry has changed hands */
	uint32		clock;			/* counts uses, for stamps */
	TimestampTz last_used;

	/* watermark.c */
	OutboxPosition positions[OUTBOX_POSITIONS];
	int			nstrays;
	OutboxQueuePosition strays[OUTBOX_STRAYS];	/* ascending */
	uint64		nrecent;		/* reports ever made; the last OUTBOX_RECENT are kept */
	OutboxReport recent[OUTBOX_RECENT];
	int			nclaimants;
	TransactionId claimants[OUTBOX_CLAIMANTS];
	OutboxKeyFloor floors[OUTBOX_KEY_FLOORS];

	/* turn.c */
	uint64		turn;			/* whose turn it is to choose rows; 0: nobody's */
	uint64		last_turn;		/* the number given out last, in this entry whoever owned it */
	ConditionVariable turn_ended;	/* has a lock of its own */

	/* waiters.c: a list of slots in OutboxPullShared.waiters, highest version first */
	int			first_waiter;	/* -1: none */
	int			last_waiter;
	int			nwaiters;
	TimestampTz next_check;		/* when the keeper is to look for what has fallen due */
} OutboxPullState;

/* A backend inside outbox.wait(), at the index of its procno. */
typedef struct OutboxWaiter
{
	int			next;			/* -1: last */
	int			previous;
	int32		version;
	bool		waiting;		/* in the list of its handler */
	bool		woken;			/* taken off the list because something may be claimed */
} OutboxWaiter;

typedef struct OutboxPullShared
{
	slock_t		mutex;			/* guards the owners of all states */
	OutboxPullState states[OUTBOX_PULL_STATES];
	int			max_waiters;
	OutboxWaiter waiters[FLEXIBLE_ARRAY_MEMBER];
} OutboxPullShared;

extern OutboxPullShared *outbox_pull_shared;

/* Called by outbox_shmem_init()'s hooks: the size of this area, and its setup. */
extern Size outbox_pull_shmem_size(void);
extern void outbox_pull_shmem_startup(void);

/*
 * The state of a handler.  With create, makes one if need be; still NULL
 * when there is no shared memory or, very unlikely, no room.
 */
extern OutboxPullState *outbox_pull_state(Oid dboid, int32 handler_id, bool create);

/* Call something for every state of a database. */
extern void outbox_pull_states_of(Oid dboid, void (*callback) (OutboxPullState *state));

/* A pull handler and its state as it was looked up; NULL: it had none. */
typedef struct OutboxPullRef
{
	Oid			dboid;
	int32		handler_id;
	OutboxPullState *state;
} OutboxPullRef;

/* Lock the state; false, unlocked, if there is none or it has changed hands. */
extern bool outbox_pull_state_lock(const OutboxPullRef *ref);
extern void outbox_pull_state_unlock(const OutboxPullRef *ref);

#endif							/* OUTBOX_PULL_STATE_H */
