/*-------------------------------------------------------------------------
 *
 * change.h
 *		A change of a watched row, and the message that announces it.
 *
 * Values become JSON as to_jsonb() makes them.  That may call a cast of the
 * row's types, as the role that writes.
 *
 * Process: any backend, in a transaction; allocates in the current memory
 * context.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_CHANGE_H
#define OUTBOX_CHANGE_H

#include "postgres.h"

#include "access/htup.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

#include "watch/watch.h"

typedef struct OutboxRow
{
	Datum	   *values;
	bool	   *nulls;
} OutboxRow;

typedef struct OutboxChange
{
	const OutboxWatch *watch;
	OutboxChangeKind kind;
	bool		restored;		/* created again, by clearing the soft_delete column */
	TupleDesc	desc;
	OutboxRow  *old;			/* NULL: it was not there before */
	OutboxRow  *now;			/* the row as it is now, or was last; NULL: it is about the table */
	Bitmapset  *changed;		/* of an update: attribute numbers, without those to ignore */
} OutboxChange;

/*
 * What happened to a row that was old and is new, either of which may be
 * NULL.  False if it is not to be announced.
 */
extern bool outbox_change_of_row(OutboxChange *change, const OutboxWatch *watch, TupleDesc desc,
								 HeapTuple old, HeapTuple new);

/* The table was emptied. */
extern void outbox_change_of_table(OutboxChange *change, const OutboxWatch *watch);

/* The parts of its message. */
extern Jsonb *outbox_change_payload(const OutboxChange *change);
extern text *outbox_change_tenant(const OutboxChange *change);
extern text *outbox_change_key(const OutboxChange *change);

#endif							/* OUTBOX_CHANGE_H */
