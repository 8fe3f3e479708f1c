/*-------------------------------------------------------------------------
 *
 * on_settle_slot.h
 *		Where a database's on_settle workers are, and what each is doing.
 *
 * An on_settle worker holds one of its database's places in shared memory while
 * it lives.  Worker 0 runs the functions of any handler; worker 1, the
 * spare, is there only while worker 0 is busy with a slow one.
 *
 * The first group is for the on_settle worker that holds the place, the second
 * one for everybody.
 *
 * Processes: the on_settle workers; the launcher and the dispatcher look.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ON_SETTLE_SLOT_H
#define OUTBOX_ON_SETTLE_SLOT_H

#include "shared/shmem.h"

/* A function that runs for longer than this is a slow one. */
#define OUTBOX_ON_SETTLE_SLOW_MS 100

/*
 * Take place number of a database.  NULL if somebody has it, if there is no
 * dispatcher, or if the database is locked out.  It is let go at process exit.
 */
extern OutboxDatabase *outbox_on_settle_slot_take(Oid dboid, int number);

/* True once this worker is to leave: its dispatcher has gone, or the database is locked out. */
extern bool outbox_on_settle_slot_must_leave(void);

/* True while some handler has an on_settle function. */
extern bool outbox_on_settle_slot_is_wanted(void);

/*
 * Say whose function is about to run.  False, and nothing is said, if the
 * other worker is running that handler's: one handler never takes both.
 */
extern bool outbox_on_settle_slot_begin(int32 handler_id, int64 queue_id);
extern void outbox_on_settle_slot_end(void);

/* Whose function the other worker is running; 0: none. */
extern int32 outbox_on_settle_slot_other(void);
extern void outbox_on_settle_slot_wake_other(void);

/* In a signal handler: wake the dispatcher; note that the function running now cannot be stopped. */
extern void outbox_on_settle_slot_wake_dispatcher(void);
extern void outbox_on_settle_slot_set_overran(void);

/* Has the function for this hand-over ended the process of a worker before? */
extern bool outbox_on_settle_slot_has_overrun(int64 queue_id);

/* The process ends because it is not needed, not because it failed. */
extern void outbox_on_settle_slot_leave(void);

/* What a place says. */
typedef struct OutboxOnSettleView
{
	pid_t		pid;			/* 0: nobody there */
	int			procno;
	bool		failed;			/* whoever was there last did not leave of its own accord */
	int32		handler_id;		/* whose function is running; 0: none */
	TimestampTz since;			/* for so long */
} OutboxOnSettleView;

extern void outbox_on_settle_view(OutboxDatabase *db, int number, OutboxOnSettleView *view);

/* Make the on_settle workers look at what they are asked for. */
extern void outbox_on_settle_wake(OutboxDatabase *db);

/* End them, whatever they are doing. */
extern void outbox_on_settle_terminate(OutboxDatabase *db);

#endif							/* OUTBOX_ON_SETTLE_SLOT_H */
