/*-------------------------------------------------------------------------
 *
 * row_writer.h
 *		Inserts, changes and deletes single rows without a plan.
 *
 * Promises: a row written here is as one that a statement wrote: constraints,
 * indexes and WAL included, and triggers on the table that are ENABLE ALWAYS,
 * with the owner's rights.  Others do not fire: whoever was granted TRIGGER
 * can make those.  Nor do those with transition tables, which there are none
 * of; outbox.verify() names them.  Starting an executor for every row of a
 * kept plan costs more than the row itself, so rows are handed to its lowest
 * layer, and what that works with is kept from one writer to the next.  No
 * right on a table is checked; the right to call the function that writes is
 * what counts.
 *
 * Deliveries and receipts that are inserted wait for the writer's end, or until
 * there are thousands of them, and go into their table many at a time, which
 * takes half the WAL of one at a time.  So an error that is one row's may be
 * raised when the writer ends.  Rows end behind the last column that says
 * something: what is NULL, or what rows that end before it have there, takes
 * no room.
 *
 * For the rest of this room, for staging, and for secrets, which no statement
 * may have among its parameters.  Process: any, in a transaction with an
 * active snapshot.  Everything belongs to the memory context and the
 * transaction it is opened in, and is closed by an error's abort.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ROW_WRITER_H
#define OUTBOX_ROW_WRITER_H

#include "postgres.h"

#include "executor/executor.h"
#include "nodes/execnodes.h"

#include "table/columns.h"

typedef enum OutboxTable
{
	OUTBOX_TABLE_MESSAGE,
	OUTBOX_TABLE_DELIVERY,
	OUTBOX_TABLE_RECEIPT,
	OUTBOX_TABLE_HANDLER_SECRET,
	OUTBOX_TABLE_EVENT_QUEUE,
	OUTBOX_TABLES
} OutboxTable;

/* One table of a writer, opened when it is first written to. */
typedef struct OutboxTarget
{
	Relation	rel;			/* NULL: not open */
	EState	   *estate;
	ResultRelInfo *result;
	struct OutboxUpkeep *upkeep;	/* NULL: this writer's own */
	bool		has_triggers;
	bool		inserted;		/* what statement triggers are told of */
	bool		updated;
	bool		deleted;
	TupleTableSlot *row;		/* the row to be written */
	TupleDesc  *shapes;			/* what tuples of so many columns are made by, once there was one; NULL: rows are whole */
	TupleTableSlot *stored;		/* that tuple */
	bool		may_wait;		/* rows that are inserted wait for others */
	HeapTuple  *waiting;
	int			nwaiting;
	int			max_waiting;	/* there is room for so many */
} OutboxTarget;

typedef struct OutboxWriter
{
	MemoryContext context;
	OutboxTarget targets[OUTBOX_TABLES];
	EState	   *trigger_estate; /* NULL: no table has triggers */
	EPQState	epq;
} OutboxWriter;

/* Tables are opened, and locked ROW EXCLUSIVE, as they are written to. */
extern void outbox_writer_begin(OutboxWriter *writer);

/* Inserts what waits, fires what after triggers there are and makes the rows visible to later commands. */
extern void outbox_writer_end(OutboxWriter *writer);

/* A row to be filled in: all NULL, or as one that was read. */
extern TupleTableSlot *outbox_writer_start(OutboxWriter *writer, OutboxTable table);
extern TupleTableSlot *outbox_writer_start_from(OutboxWriter *writer, OutboxTable table, TupleTableSlot *found);

static inline void
outbox_row_set(TupleTableSlot *row, AttrNumber column, Datum value)
{
	row->tts_values[column - 1] = value;
	row->tts_isnull[column - 1] = false;
}

static inline void
outbox_row_set_null(TupleTableSlot *row, AttrNumber column)
{
	row->tts_values[column - 1] = (Datum) 0;
	row->tts_isnull[column - 1] = true;
}

/* A value by reference; NULL leaves the column NULL. */
static inline void
outbox_row_set_pointer(TupleTableSlot *row, AttrNumber column, const void *value)
{
	if (value != NULL)
		outbox_row_set(row, column, PointerGetDatum(value));
}

/* NULL and the empty string are stored as NULL. */
extern void outbox_row_set_text(TupleTableSlot *row, AttrNumber column, const char *value);

/* Insert the row that was filled in, at the latest when the writer ends. */
extern void outbox_writer_insert(OutboxWriter *writer, OutboxTable table);

/* Put it in the place of one that this transaction has locked. */
extern void outbox_writer_update(OutboxWriter *writer, OutboxTable table, TupleTableSlot *found);

/*
 * Delete a row.  locked: this transaction has locked it.  Otherwise nobody is
 * waited for: false, and nothing is done, if somebody has it or has changed it.
 */
extern bool outbox_writer_delete(OutboxWriter *writer, OutboxTable table, TupleTableSlot *found, bool locked);

#endif							/* OUTBOX_ROW_WRITER_H */
