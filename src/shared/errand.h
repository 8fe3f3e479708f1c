/*-------------------------------------------------------------------------
 *
 * errand.h
 *		What one CALL outbox.deliver_now() asks for, and what has become of it.
 *
 * The session that calls has a dispatcher of its own for that: a background
 * worker which delivers what there is to deliver, says how it went, and ends.
 * Both, and the workers which that dispatcher starts, see the errand in a
 * segment of dynamic shared memory that the session makes and that goes with
 * them.
 *
 * On a server that preloads the library such a dispatcher takes the place of
 * the database's own one, which the session locks out for the time
 * (lockout.h), and hears what that one would have heard.  On another one there
 * is no shared memory of ours, so the segment has some for this database
 * alone, and these few processes take that for the server's.
 *
 * Processes: the session makes and reads it; its dispatcher writes; the
 * workers of that count.  Everybody else has none.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ERRAND_H
#define OUTBOX_ERRAND_H

#include "outbox.h"

#include "port/atomics.h"
#include "shared/counters.h"
#include "storage/dsm.h"
#include "storage/spin.h"

typedef enum OutboxErrandFate
{
	OUTBOX_ERRAND_UNDERWAY,
	OUTBOX_ERRAND_DONE,			/* what is left cannot go now */
	OUTBOX_ERRAND_ENDLESS,		/* after max_rounds there was more to bring forward: text says what */
	OUTBOX_ERRAND_FAILED		/* text says why */
} OutboxErrandFate;

/* Advisory locks: of a session that calls, until its turn is over, and of the dispatcher that it has started. */
#define OUTBOX_ERRAND_LOCK_CLASS 4244
#define OUTBOX_ERRAND_LOCK_SESSION 1
#define OUTBOX_ERRAND_LOCK_WORKER 2

/* Room for what is said. */
#define OUTBOX_ERRAND_TEXT 1024

typedef struct OutboxErrand
{
	/* Written by the session before anybody else sees it. */
	Size		size;			/* of all of it: a library that was replaced meanwhile may have another idea */
	Oid			dboid;
	pid_t		session;
	NameData	caller;			/* its role */
	bool		skip_ahead;		/* bring forward what is not due, and wait for nothing that would pass by itself */
	int			max_rounds;		/* so often at most */
	Size		memory_at;		/* where the memory for this database lies; 0: the server has some */

	/* Written by the dispatcher, under mutex. */
	slock_t		mutex;
	OutboxErrandFate fate;
	char		text[OUTBOX_ERRAND_TEXT];	/* while it is under way: what is in the way at the moment, if anything */

	/* What has happened, by OutboxCounter. */
	pg_atomic_uint64 counts[OUTBOX_COUNT_TIMES];
} OutboxErrand;

/* How large a segment has to be, and an errand in it, for the database of this session. */
extern Size outbox_errand_size(void);
extern OutboxErrand *outbox_errand_make(dsm_segment *segment, const char *caller);

/* What has become of it; text has room for OUTBOX_ERRAND_TEXT. */
extern OutboxErrandFate outbox_errand_fate(OutboxErrand *errand, char *text);

/* Serve the errand in this segment, for as long as the process lives.  False: the session that asked has gone. */
extern bool outbox_errand_join(dsm_handle handle);

/* For those that serve one: its segment, DSM_HANDLE_INVALID where there is none; and its database. */
extern dsm_handle outbox_errand_handle(void);
extern Oid	outbox_errand_database(void);

/* Does this process serve one?  Is what waits for a time not to wait? */
extern bool outbox_errand_runs(void);
extern bool outbox_errand_skips(void);
extern int	outbox_errand_max_rounds(void);

/* Can other sessions ring for it (doorbell.h)?  Not where its memory is its own. */
extern bool outbox_errand_is_heard(void);
extern const char *outbox_errand_caller(void);

/*
 * Say what is in the way (NULL: nothing) or how it has ended; the first end
 * that is said counts.  Nothing happens where there is no errand.
 */
extern void outbox_errand_say(OutboxErrandFate fate, const char *text);
extern bool outbox_errand_is_over(void);

#endif							/* OUTBOX_ERRAND_H */
