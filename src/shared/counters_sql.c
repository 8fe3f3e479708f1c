/*-------------------------------------------------------------------------
 *
 * counters_sql.c
 *		The counters as SQL sees them: outbox.stat_handlers, stat_histograms
 *		and stat_dispatcher, and their reset.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/result_set.h"
#include "shared/counters.h"

PG_FUNCTION_INFO_V1(outbox_sql_stat_handlers);
PG_FUNCTION_INFO_V1(outbox_sql_stat_dispatcher);
PG_FUNCTION_INFO_V1(outbox_sql_reset_counters);
PG_FUNCTION_INFO_V1(outbox_sql_stat_histograms);

/* The columns of outbox_internal.stat_handlers() behind handler_id and stats_reset; then come the times. */
static const OutboxCounter handler_columns[] = {
	OUTBOX_COUNT_STAGED,
	OUTBOX_COUNT_REQUEUED,
	OUTBOX_COUNT_DELIVERED,
	OUTBOX_COUNT_RETRIED,
	OUTBOX_COUNT_DEAD,
	OUTBOX_COUNT_CANCELLED,
	OUTBOX_COUNT_EXPIRED,
	OUTBOX_COUNT_2XX,
	OUTBOX_COUNT_3XX,
	OUTBOX_COUNT_4XX,
	OUTBOX_COUNT_5XX,
	OUTBOX_COUNT_TIMEOUT,
	OUTBOX_COUNT_CONNECT,
	OUTBOX_COUNT_TLS,
	OUTBOX_COUNT_BLOCKED,
	OUTBOX_COUNT_OTHER,
	OUTBOX_COUNT_CONSUMED,
	OUTBOX_COUNT_REFUSED,
	OUTBOX_COUNT_LEASE_EXPIRED,
	OUTBOX_COUNT_BYTES
};

/* Of each histogram: how many times, their sum in seconds, and two quantiles. */
#define TIME_COLUMNS 4

#define HANDLER_COLUMNS (2 + lengthof(handler_columns) + TIME_COLUMNS * OUTBOX_HISTOGRAMS)

#define HISTOGRAM_COLUMNS 5

static const char *const histogram_names[OUTBOX_HISTOGRAMS] = {"request", "delivery", "wake_up"};

/* The columns of outbox_internal.stat_dispatcher() behind stats_reset. */
static const OutboxDispatcherCounter dispatcher_columns[] = {
	OUTBOX_DISPATCHER_COUNT_STARTS,
	OUTBOX_DISPATCHER_COUNT_TURNS,
	OUTBOX_DISPATCHER_COUNT_BUSY_US,
	OUTBOX_DISPATCHER_COUNT_WAITING_US,
	OUTBOX_DISPATCHER_COUNT_TRANSACTIONS,
	OUTBOX_DISPATCHER_COUNT_FAILURES,
	OUTBOX_DISPATCHER_COUNT_READ,
	OUTBOX_DISPATCHER_COUNT_REQUESTS,
	OUTBOX_DISPATCHER_COUNT_REUSED,
	OUTBOX_DISPATCHER_COUNT_UNSENT,
	OUTBOX_DISPATCHER_COUNT_SETTLED,
	OUTBOX_DISPATCHER_COUNT_GIVEN_AWAY,
	OUTBOX_DISPATCHER_COUNT_OVERFLOWS,
	OUTBOX_DISPATCHER_COUNT_UNCOUNTED
};

#define DISPATCHER_COLUMNS (1 + lengthof(dispatcher_columns))

/* The entry at a place if it is of this database: whose it is. */
static OutboxCounters *
entry_at(int i, int32 *handler_id)
{
	OutboxCounters *entry = &outbox_counters_entries()[i];
	uint64		owner = pg_atomic_read_u64(&entry->owner);

	if ((Oid) (owner >> 32) != MyDatabaseId)
		return NULL;
	*handler_id = (int32) (uint32) owner;
	return entry;
}

static Datum
read_count(OutboxCounters *entry, int counter)
{
	return Int64GetDatum((int64) pg_atomic_read_u64(&entry->counts[counter]));
}

static Datum
read_reset(OutboxCounters *entry)
{
	return TimestampTzGetDatum((TimestampTz) pg_atomic_read_u64(&entry->reset_at));
}

/* The buckets of a histogram; returns how many times are in them. */
static int64
read_buckets(OutboxCounters *entry, OutboxHistogram histogram, int64 *buckets)
{
	int64		n = 0;

	for (int i = 0; i < OUTBOX_BUCKETS; i++)
	{
		buckets[i] = (int64) pg_atomic_read_u64(&entry->counts[outbox_sum_counter(histogram) + 1 + i]);
		n += buckets[i];
	}
	return n;
}

static double
bound_in_seconds(int bucket)
{
	return (double) outbox_histogram_bounds[bucket] / USECS_PER_SEC;
}

/*
 * The time that this share of n took at most, as if those of a bucket lay
 * evenly between its bounds.  Of what lies above the last bound only that is known.
 */
static double
quantile(const int64 *buckets, int64 n, double share)
{
	double		rank = share * n;
	int64		below = 0;
	double		lower;

	for (int i = 0; i < OUTBOX_HISTOGRAM_BOUNDS; i++)
	{
		if (buckets[i] > 0 && below + buckets[i] >= rank)
		{
			lower = i == 0 ? 0 : bound_in_seconds(i - 1);
			return lower + (bound_in_seconds(i) - lower) * (rank - below) / buckets[i];
		}
		below += buckets[i];
	}
	return bound_in_seconds(OUTBOX_HISTOGRAM_BOUNDS - 1);
}

static void
put_times(OutboxCounters *entry, OutboxHistogram histogram, Datum *values, bool *nulls)
{
	int64		buckets[OUTBOX_BUCKETS];
	int64		n = read_buckets(entry, histogram, buckets);

	values[0] = Int64GetDatum(n);
	values[1] = Float8GetDatum((double) pg_atomic_read_u64(&entry->counts[outbox_sum_counter(histogram)]) / USECS_PER_SEC);
	nulls[2] = nulls[3] = (n == 0);
	values[2] = Float8GetDatum(quantile(buckets, n, 0.5));
	values[3] = Float8GetDatum(quantile(buckets, n, 0.99));
}

/* outbox_internal.stat_handlers() */
Datum
outbox_sql_stat_handlers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = outbox_begin_result_set(fcinfo, HANDLER_COLUMNS);

	for (int i = 0; i < outbox_counters_size(); i++)
	{
		Datum		values[HANDLER_COLUMNS];
		bool		nulls[HANDLER_COLUMNS] = {false};
		int32		handler_id;
		OutboxCounters *entry = entry_at(i, &handler_id);
		int			n = 0;

		if (entry == NULL || handler_id == OUTBOX_COUNTED_DISPATCHER)
			continue;
		values[n++] = Int32GetDatum(handler_id);
		values[n++] = read_reset(entry);
		for (int j = 0; j < lengthof(handler_columns); j++)
			values[n++] = read_count(entry, handler_columns[j]);
		for (int j = 0; j < OUTBOX_HISTOGRAMS; j++, n += TIME_COLUMNS)
			put_times(entry, j, values + n, nulls + n);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* outbox_internal.stat_dispatcher() */
Datum
outbox_sql_stat_dispatcher(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = outbox_begin_result_set(fcinfo, DISPATCHER_COLUMNS);

	for (int i = 0; i < outbox_counters_size(); i++)
	{
		Datum		values[DISPATCHER_COLUMNS];
		bool		nulls[DISPATCHER_COLUMNS] = {false};
		int32		handler_id;
		OutboxCounters *entry = entry_at(i, &handler_id);

		if (entry == NULL || handler_id != OUTBOX_COUNTED_DISPATCHER)
			continue;
		values[0] = read_reset(entry);
		for (int j = 0; j < lengthof(dispatcher_columns); j++)
			values[1 + j] = read_count(entry, dispatcher_columns[j]);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* outbox_internal.reset_counters(handler_id); NULL: of all handlers, and of the dispatcher. */
Datum
outbox_sql_reset_counters(PG_FUNCTION_ARGS)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < outbox_counters_size(); i++)
	{
		int32		handler_id;
		OutboxCounters *entry = entry_at(i, &handler_id);

		if (entry == NULL || !(PG_ARGISNULL(0) || PG_GETARG_INT32(0) == handler_id))
			continue;
		for (int j = 0; j < OUTBOX_COUNTERS; j++)
			pg_atomic_write_u64(&entry->counts[j], 0);
		pg_atomic_write_u64(&entry->reset_at, (uint64) now);
	}
	PG_RETURN_VOID();
}

/* A row for each bucket of one histogram. */
static void
return_histogram(ReturnSetInfo *result, OutboxCounters *entry, int32 handler_id, OutboxHistogram histogram)
{
	int64		buckets[OUTBOX_BUCKETS];
	int64		up_to = 0;

	(void) read_buckets(entry, histogram, buckets);
	for (int i = 0; i < OUTBOX_BUCKETS; i++)
	{
		Datum		values[HISTOGRAM_COLUMNS];
		bool		nulls[HISTOGRAM_COLUMNS] = {false};

		up_to += buckets[i];
		values[0] = Int32GetDatum(handler_id);
		values[1] = CStringGetTextDatum(histogram_names[histogram]);
		values[2] = Float8GetDatum(i < OUTBOX_HISTOGRAM_BOUNDS ? bound_in_seconds(i) : get_float8_infinity());
		values[3] = Int64GetDatum(buckets[i]);
		values[4] = Int64GetDatum(up_to);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

/* outbox_internal.stat_histograms() */
Datum
outbox_sql_stat_histograms(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = outbox_begin_result_set(fcinfo, HISTOGRAM_COLUMNS);

	for (int i = 0; i < outbox_counters_size(); i++)
	{
		int32		handler_id;
		OutboxCounters *entry = entry_at(i, &handler_id);

		if (entry == NULL || handler_id == OUTBOX_COUNTED_DISPATCHER)
			continue;
		for (int j = 0; j < OUTBOX_HISTOGRAMS; j++)
			return_histogram(result, entry, handler_id, j);
	}
	return (Datum) 0;
}
