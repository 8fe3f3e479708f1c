/*-------------------------------------------------------------------------
 *
 * function_slot.h
 *		Where a database's workers that run functions of users are, and what
 *		each is doing.
 *
 * Such a worker holds one of its database's places in shared memory while it
 * lives.  The first on_settle worker runs the functions of any handler; the
 * spare is there only while that is busy with a slow one.  Of schedules one
 * worker stages messages and another one runs functions, each only around
 * their occurrences.
 *
 * The first group is for the worker that holds the place, the second one for
 * everybody.
 *
 * Processes: the on_settle workers and the schedule workers; the launcher and
 * the dispatcher look.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FUNCTION_SLOT_H
#define OUTBOX_FUNCTION_SLOT_H

#include "shared/shmem.h"

/* A function that runs for longer than this is a slow one. */
#define OUTBOX_SLOW_FUNCTION_MS 100

/*
 * Take a place of a database.  NULL if somebody has it, if there is no
 * dispatcher, or if the database is locked out.  It is let go at process exit.
 */
extern OutboxDatabase *outbox_function_slot_take(Oid dboid, OutboxFunctionPlace number);

/* True once this worker is to leave: its dispatcher has gone, or the database is locked out. */
extern bool outbox_function_slot_must_leave(void);

/* True while some handler has an on_settle function. */
extern bool outbox_function_slot_on_settle_is_wanted(void);

/*
 * Say whose function is about to run, and for what.  False, and nothing is
 * said, if the other on_settle worker is running that handler's: one handler
 * never takes both.
 */
extern bool outbox_function_slot_begin(int32 owner, int64 piece);
extern void outbox_function_slot_end(void);

/* Whose function the other on_settle worker is running; 0: none. */
extern int32 outbox_function_slot_other(void);
extern void outbox_function_slot_wake_other(void);

/* In a signal handler: wake the dispatcher; note that the function running now cannot be stopped. */
extern void outbox_function_slot_wake_dispatcher(void);
extern void outbox_function_slot_set_overran(void);

/* Has the function for this piece ended the process of a worker before?  And once that has been noted elsewhere. */
extern bool outbox_function_slot_has_overrun(int64 piece);
extern void outbox_function_slot_forget_overrun(void);

/* Has this worker's dispatcher requests out, or receipts to write that another process writes for it? */
extern bool outbox_function_slot_dispatcher_is_busy(void);

/* The process ends because it is not needed, not because it failed. */
extern void outbox_function_slot_leave(void);

/* What a place says. */
typedef struct OutboxFunctionSlotView
{
	pid_t		pid;			/* 0: nobody there */
	int			procno;
	bool		failed;			/* whoever was there last did not leave of its own accord */
	int32		owner;			/* whose function is running; 0: none */
	TimestampTz since;			/* for so long */
} OutboxFunctionSlotView;

extern void outbox_function_slot_view(OutboxDatabase *db, OutboxFunctionPlace number, OutboxFunctionSlotView *view);

/* Make these workers look at what they are asked for. */
extern void outbox_function_slots_wake(OutboxDatabase *db);

/* End them, whatever they are doing. */
extern void outbox_function_slots_terminate(OutboxDatabase *db);

#endif							/* OUTBOX_FUNCTION_SLOT_H */
