/*-------------------------------------------------------------------------
 *
 * query_row.c
 *		One row of what an SPI query has returned, read column by column.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "common/query_row.h"

OutboxQueryRow
outbox_query_row(uint64 number)
{
	OutboxQueryRow row = {SPI_tuptable->vals[number], SPI_tuptable->tupdesc};

	return row;
}

Datum
outbox_query_datum(const OutboxQueryRow *row, int column, bool *isnull)
{
	return SPI_getbinval(row->tuple, row->desc, column, isnull);
}

/* NULL is all zeros for every type that is passed by value. */
static Datum
value_or_zero(const OutboxQueryRow *row, int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(row->tuple, row->desc, column, &isnull);

	return isnull ? (Datum) 0 : value;
}

bool
outbox_query_bool(const OutboxQueryRow *row, int column)
{
	return DatumGetBool(value_or_zero(row, column));
}

int16
outbox_query_int16(const OutboxQueryRow *row, int column)
{
	return DatumGetInt16(value_or_zero(row, column));
}

int32
outbox_query_int32(const OutboxQueryRow *row, int column)
{
	return DatumGetInt32(value_or_zero(row, column));
}

/* Where eight bytes are passed by reference, so is nothing. */
int64
outbox_query_int64(const OutboxQueryRow *row, int column)
{
	Datum		value = value_or_zero(row, column);

	return value == (Datum) 0 ? 0 : DatumGetInt64(value);
}

double
outbox_query_double(const OutboxQueryRow *row, int column)
{
	Datum		value = value_or_zero(row, column);

	return value == (Datum) 0 ? 0 : DatumGetFloat8(value);
}

char *
outbox_query_text(const OutboxQueryRow *row, int column)
{
	Datum		value = value_or_zero(row, column);

	return value == (Datum) 0 ? NULL : TextDatumGetCString(value);
}
