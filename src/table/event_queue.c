/*-------------------------------------------------------------------------
 *
 * event_queue.c
 *		Deaths of deliveries that handlers want to be told of.
 *
 * See event_queue.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "utils/snapmgr.h"

#include "common/session.h"
#include "compat.h"
#include "table/event_queue.h"
#include "table/relation.h"

/* The index has those handlers that take events, and no others. */
static bool
has_entry(Relation handlers, Relation index)
{
	IndexScanDesc scan = outbox_index_beginscan(handlers, index, GetActiveSnapshot(), 0);
	TupleTableSlot *slot = table_slot_create(handlers, NULL);
	bool		found;

	index_rescan(scan, NULL, 0, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	ExecDropSingleTupleTableSlot(slot);
	index_endscan(scan);
	return found;
}

/* A settlement must not fail, nor wait, for want of an answer: what is queued in vain is thrown away later. */
bool
outbox_events_are_wanted(void)
{
	Relation	handlers;
	Relation	index;
	bool		wanted = true;

	if (!OidIsValid(outbox_relation_oid("handler_events", true)))
		return true;
	handlers = outbox_table_open_if_free("handler", AccessShareLock);
	if (handlers == NULL)
		return true;
	index = outbox_index_open_if_free(handlers, "handler_events", AccessShareLock);
	if (index != NULL)
	{
		wanted = has_entry(handlers, index);
		index_close(index, NoLock);
	}
	table_close(handlers, NoLock);
	return wanted;
}

void
outbox_event_queue_death(OutboxWriter *writer, const OutboxDeath *death)
{
	TupleTableSlot *row = outbox_writer_start(writer, OUTBOX_TABLE_EVENT_QUEUE);

	outbox_row_set(row, Anum_event_queue_happened_at, TimestampTzGetDatum(death->died_at));
	outbox_row_set_text(row, Anum_event_queue_topic, "outbox.delivery.dead");
	outbox_row_set(row, Anum_event_queue_handler_id, Int32GetDatum(death->handler_id));
	outbox_row_set_pointer(row, Anum_event_queue_message_id, &death->message_id);
	outbox_row_set(row, Anum_event_queue_attempts, Int32GetDatum(death->attempts));
	if (death->http_status != 0)
		outbox_row_set(row, Anum_event_queue_http_status, Int16GetDatum(death->http_status));
	outbox_row_set_text(row, Anum_event_queue_code, death->code);
	outbox_row_set_text(row, Anum_event_queue_error, death->error);
	outbox_writer_insert(writer, OUTBOX_TABLE_EVENT_QUEUE);
}
