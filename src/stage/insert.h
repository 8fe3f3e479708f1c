/*-------------------------------------------------------------------------
 *
 * insert.h
 *		Rows for outbox.message and outbox.delivery, without a plan.
 *
 * Promises: a row inserted here is as one of an INSERT: constraints, indexes
 * and WAL included, and triggers that are ENABLE ALWAYS (see
 * outbox_become_owner_to_write()).  Starting an executor for every row of a kept
 * plan costs more than the row itself, so the rows are made and handed to
 * the executor's insertion directly.  No right on the table is checked; the
 * right to call the function that stages is what counts.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_INSERT_H
#define OUTBOX_INSERT_H

#include "nodes/execnodes.h"

#include "stage/new_message.h"
#include "stage/routes.h"

typedef struct OutboxTable
{
	Relation	rel;
	ResultRelInfo *result;
	TupleTableSlot *slot;
} OutboxTable;

/* Both tables, open for insertion; lives in the memory context it was opened in. */
typedef struct OutboxInserter
{
	EState	   *estate;
	OutboxTable message;
	OutboxTable delivery;
} OutboxInserter;

extern void outbox_inserter_open(OutboxInserter *inserter);

/* Fires what after triggers there are and makes the rows visible to later commands. */
extern void outbox_inserter_close(OutboxInserter *inserter);

extern void outbox_insert_message(OutboxInserter *inserter, const OutboxNewMessage *message);

/* One delivery of the message, pending. */
extern void outbox_insert_delivery(OutboxInserter *inserter, const OutboxNewMessage *message,
								   const OutboxRoute *route);

/* The dead letter of a message that nobody takes. */
extern void outbox_insert_unrouted(OutboxInserter *inserter, const OutboxNewMessage *message);

#endif							/* OUTBOX_INSERT_H */
