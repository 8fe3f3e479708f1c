/*-------------------------------------------------------------------------
 *
 * outstanding.h
 *		Reading the index of outstanding deliveries in queue order.
 *
 * Rows are read with index scans of our own choosing rather than with SQL:
 * there is no plan that could go wrong on a table of settled rows.
 *
 * Processes: the dispatcher for push lanes, any backend for claims.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_OUTSTANDING_H
#define OUTBOX_OUTSTANDING_H

#include "access/genam.h"
#include "access/skey.h"

#include "outbox.h"

/* What a scan keeps pointing at while it runs. */
typedef struct OutboxOutstandingStart
{
	OutboxQueuePosition key;
	ScanKeyData row[2];
} OutboxOutstandingStart;

/*
 * (Re)start a scan of delivery_outstanding, made for two keys:
 * handler_id = $1 AND (due_at, message_id) > (at.due_at, at.id), or >= if
 * !after.  start must live as long as the scan does.
 */
extern void outbox_outstanding_rescan(IndexScanDesc scan, OutboxOutstandingStart *start,
									  int32 handler_id, const OutboxQueuePosition *at, bool after);

/* The queue key of the entry the scan is at, dead or not; the scan has xs_want_itup set. */
extern void outbox_outstanding_key(IndexScanDesc scan, OutboxQueuePosition *key);

/* The conditions handler_id = $1 AND key = $2, of the indexes that begin with these columns. */
extern void outbox_init_key_scan(ScanKey keys, Relation index, int32 handler_id, const text *key);

#endif							/* OUTBOX_OUTSTANDING_H */
