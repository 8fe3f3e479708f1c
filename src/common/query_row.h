/*-------------------------------------------------------------------------
 *
 * query_row.h
 *		One row of what an SPI query has returned, read column by column.
 *
 * NULL reads as zero, false or a NULL pointer; whoever has to tell asks for
 * the Datum.  Copies are made in the current memory context.
 *
 * Process: any, between SPI_connect() and SPI_finish().
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_QUERY_ROW_H
#define OUTBOX_QUERY_ROW_H

#include "postgres.h"

#include "executor/spi.h"

typedef struct OutboxQueryRow
{
	HeapTuple	tuple;
	TupleDesc	desc;
} OutboxQueryRow;

/* The row of that number, counted from 0, of the last query. */
extern OutboxQueryRow outbox_query_row(uint64 number);

extern Datum outbox_query_datum(const OutboxQueryRow *row, int column, bool *isnull);
extern bool outbox_query_bool(const OutboxQueryRow *row, int column);
extern int16 outbox_query_int16(const OutboxQueryRow *row, int column);
extern int32 outbox_query_int32(const OutboxQueryRow *row, int column);

/* A bigint or a timestamp. */
extern int64 outbox_query_int64(const OutboxQueryRow *row, int column);
extern double outbox_query_double(const OutboxQueryRow *row, int column);

/* A copy. */
extern char *outbox_query_text(const OutboxQueryRow *row, int column);

#endif							/* OUTBOX_QUERY_ROW_H */
