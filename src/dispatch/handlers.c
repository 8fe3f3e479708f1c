/*-------------------------------------------------------------------------
 *
 * handlers.c
 *		Loads the push handlers for the dispatcher.
 *
 * See handlers.h.  This is not the hot path: it runs when the shared
 * handler generation has moved.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/query_row.h"
#include "common/session.h"
#include "dispatch/handlers.h"
#include "format/request.h"
#include "guc.h"
#include "policy/logged_headers.h"
#include "policy/retry_policy.h"

/* The order of these columns is that of the enum below; options are found by their names. */
static OutboxPlan load_plan = {
	.sql = "SELECT h.id, s.paused_at IS NOT NULL, s.breaker, s.breaker_until, s.failing_since, s.breaker_reason, s.throttled_to, s.down_since, s.held_until, s.recent_failures, s.renewals, "
	"pg_catalog.hashtextextended(pg_catalog.concat(h::pg_catalog.text, x.secrets::pg_catalog.text, x.expire::pg_catalog.text, x.credentials, "
	" pg_catalog.current_setting('outbox.user_agent'), pg_catalog.current_setting('outbox.log_response_headers')), 0), "
	"x.secrets, x.expire, x.credentials, " OUTBOX_RETRY_COLUMNS ", h.* "
	"FROM outbox.handler h LEFT JOIN outbox.handler_status s ON s.handler_id OPERATOR(pg_catalog.=) h.id "
	"LEFT JOIN LATERAL (SELECT pg_catalog.array_agg(c.secret ORDER BY c.created_at DESC) FILTER (WHERE c.kind OPERATOR(pg_catalog.=) 'signing') AS secrets, "
	" pg_catalog.max(c.secret) FILTER (WHERE c.kind OPERATOR(pg_catalog.=) 'authorization') AS credentials, "
	" pg_catalog.array_agg(COALESCE(c.expires_at, 'infinity') ORDER BY c.created_at DESC) FILTER (WHERE c.kind OPERATOR(pg_catalog.=) 'signing') AS expire "
	" FROM outbox.handler_secret c WHERE c.handler_id OPERATOR(pg_catalog.=) h.id "
	") x ON true "
	"WHERE h.dropped_at IS NULL AND h.url IS NOT NULL",
};

typedef enum LoadColumn
{
	COL_ID = 1,
	COL_PAUSED,
	COL_BREAKER,
	COL_BREAKER_UNTIL,
	COL_FAILING_SINCE,
	COL_BREAKER_REASON,
	COL_THROTTLED_TO,
	COL_DOWN_SINCE,
	COL_HELD_UNTIL,
	COL_RECENT_FAILURES,
	COL_RENEWALS,
	COL_FINGERPRINT,
	COL_SECRETS,
	COL_SECRETS_EXPIRE,
	COL_CREDENTIALS,
	COL_RETRY
} LoadColumn;

/* How the value of an option, which is not NULL, gets into its member. */
typedef void (*ReadOption) (Datum value, void *member);

static void
read_int(Datum value, void *member)
{
	*(int *) member = DatumGetInt32(value);
}

static void
read_double(Datum value, void *member)
{
	*(double *) member = DatumGetFloat8(value);
}

static void
read_bool(Datum value, void *member)
{
	*(bool *) member = DatumGetBool(value);
}

static void
read_text(Datum value, void *member)
{
	*(char **) member = TextDatumGetCString(value);
}

static void
read_jsonb(Datum value, void *member)
{
	*(const Jsonb **) member = DatumGetJsonbPCopy(value);
}

static double
interval_seconds(Datum value)
{
	return DatumGetFloat8(DirectFunctionCall2(interval_part, PointerGetDatum(cstring_to_text("epoch")), value));
}

static void
read_ms(Datum value, void *member)
{
	*(int64 *) member = (int64) rint(interval_seconds(value) * 1000);
}

static void
read_us(Datum value, void *member)
{
	*(int64 *) member = (int64) rint(interval_seconds(value) * 1000000);
}

/* A timeout as the transport takes it: none of its own unit would be for ever. */
static void
read_timeout(Datum value, void *member)
{
	*(long *) member = Max(1, (long) rint(interval_seconds(value) * 1000));
}

static void
read_http_version(Datum value, void *member)
{
	*(int *) member = strcmp(TextDatumGetCString(value), "2") == 0 ? 20 : 11;
}

static void
read_on_dead(Datum value, void *member)
{
	*(bool *) member = strcmp(TextDatumGetCString(value), "block") == 0;
}

/* A format that this library does not know cannot get past create_handler(). */
static void
read_format(Datum value, void *member)
{
	char	   *name = TextDatumGetCString(value);
	const OutboxFormat *format = outbox_format_by_name(name);

	if (format == NULL)
		elog(ERROR, "unknown format \"%s\"", name);
	*(const OutboxFormat **) member = format;
}

#define MEMBER(member) offsetof(OutboxHandler, member)

/*
 * Every column of outbox.handler that the dispatcher goes by, but for those of
 * the retry policy, which consumers' backends read too (retry_policy.c): how
 * it is read, and into which member.  One that is NULL leaves a zero there.
 */
static const struct
{
	const char *column;
	ReadOption	read;
	size_t		member;
}			options[] = {
	{"name", read_text, MEMBER(name)},
	{"url", read_text, MEMBER(target.url)},
	{"timeout", read_timeout, MEMBER(target.timeout_ms)},
	{"connect_timeout", read_timeout, MEMBER(target.connect_timeout_ms)},
	{"concurrency", read_int, MEMBER(concurrency)},
	{"rate_limit", read_double, MEMBER(rate_limit)},
	{"rate_burst", read_int, MEMBER(rate_burst)},
	{"headers", read_jsonb, MEMBER(request.headers)},
	{"format", read_format, MEMBER(request.format)},
	{"batch_size", read_int, MEMBER(batch_size)},
	{"batch_wait", read_ms, MEMBER(batch_wait)},
	{"http_version", read_http_version, MEMBER(target.http_version)},
	{"unix_socket", read_text, MEMBER(target.unix_socket)},
	{"tls_ca_file", read_text, MEMBER(target.tls_ca_file)},
	{"tls_certificate_file", read_text, MEMBER(target.tls_certificate_file)},
	{"tls_key_file", read_text, MEMBER(target.tls_key_file)},
	{"breaker_threshold", read_int, MEMBER(breaker.threshold)},
	{"breaker_wait", read_us, MEMBER(breaker.wait)},
	{"breaker_wait_max", read_us, MEMBER(breaker.wait_max)},
	{"disable_after", read_us, MEMBER(breaker.disable_after)},
	{"ordered", read_bool, MEMBER(ordered)},
	{"on_dead", read_on_dead, MEMBER(block_on_dead)},
	{"on_settle", read_text, MEMBER(on_settle)},
};

/* The signing secrets, newest first; returns how many. */
static int
get_secrets(const OutboxQueryRow *r, OutboxSecret **secrets)
{
	bool		isnull;
	Datum		d = outbox_query_datum(r, COL_SECRETS, &isnull);
	Datum	   *texts;
	Datum	   *expire;
	int			n;

	if (isnull)
		return 0;
	deconstruct_array(DatumGetArrayTypeP(d), TEXTOID, -1, false, TYPALIGN_INT, &texts, NULL, &n);
	deconstruct_array(DatumGetArrayTypeP(outbox_query_datum(r, COL_SECRETS_EXPIRE, &isnull)), TIMESTAMPTZOID,
					  sizeof(TimestampTz), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &expire, NULL, &n);
	*secrets = palloc(sizeof(OutboxSecret) * n);
	for (int i = 0; i < n; i++)
	{
		(*secrets)[i].text = TextDatumGetCString(texts[i]);
		(*secrets)[i].expires_at = DatumGetTimestampTz(expire[i]);
	}
	return n;
}

/* How its requests are written. */
static void
load_form(const OutboxQueryRow *r, OutboxHandler *handler)
{
	OutboxRequestOptions *request = &handler->request;
	OutboxSecret *secrets = NULL;

	request->handler = handler->name;
	request->batch = handler->batch_size > 1;
	request->source = outbox_event_source(get_database_name(MyDatabaseId));
	request->user_agent = outbox_user_agent;
	request->authorization = outbox_query_text(r, COL_CREDENTIALS);
	request->nsecrets = get_secrets(r, &secrets);
	request->secrets = secrets;
	handler->form = outbox_request_form(request);
	handler->nlogged_headers = outbox_logged_headers_copy(&handler->logged_headers);
	handler->target.headers = handler->form->headers;
	handler->target.nheaders = handler->form->nheaders;
}

static OutboxBreakerState
get_breaker_state(const OutboxQueryRow *r)
{
	char	   *name = outbox_query_text(r, COL_BREAKER);

	if (name == NULL || strcmp(name, "closed") == 0)
		return OUTBOX_BREAKER_CLOSED;
	/* A probe that was out when the process ended is not out any more. */
	return OUTBOX_BREAKER_OPEN;
}

static void
load_row(const OutboxQueryRow *r, OutboxHandlerRow *row)
{
	char	   *reason = outbox_query_text(r, COL_BREAKER_REASON);

	row->id = outbox_query_int32(r, COL_ID);
	row->paused = outbox_query_bool(r, COL_PAUSED);
	row->fingerprint = outbox_query_int64(r, COL_FINGERPRINT);
	row->breaker = get_breaker_state(r);
	row->breaker_until = outbox_query_int64(r, COL_BREAKER_UNTIL);
	row->failing_since = outbox_query_int64(r, COL_FAILING_SINCE);
	row->throttled_to = outbox_query_double(r, COL_THROTTLED_TO);
	row->down_since = outbox_query_int64(r, COL_DOWN_SINCE);
	row->held_until = outbox_query_int64(r, COL_HELD_UNTIL);
	row->recent_failures = outbox_query_int32(r, COL_RECENT_FAILURES);
	row->renewals = outbox_query_int32(r, COL_RENEWALS);
	strlcpy(row->breaker_reason, reason ? reason : "", sizeof(row->breaker_reason));
}

static void
load_options(const OutboxQueryRow *r, const int *columns, OutboxHandler *handler)
{
	for (int i = 0; i < (int) lengthof(options); i++)
	{
		bool		isnull;
		Datum		value = outbox_query_datum(r, columns[i], &isnull);

		if (!isnull)
			options[i].read(value, (char *) handler + options[i].member);
	}
	handler->target.max_connections = handler->concurrency;
}

/* The whole configuration, allocated in context.  columns: where the options are in the row. */
static OutboxHandler *
load_handler(const OutboxQueryRow *r, const int *columns, const OutboxHandlerRow *row, MemoryContext context)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	OutboxHandler *handler = palloc0(sizeof(OutboxHandler));

	handler->context = context;
	handler->id = row->id;
	handler->fingerprint = row->fingerprint;
	load_options(r, columns, handler);
	load_form(r, handler);
	outbox_read_retry_policy(r->tuple, r->desc, COL_RETRY, &handler->retry);
	MemoryContextSwitchTo(oldcontext);
	return handler;
}

/*
 * One handler whose row makes no sense (put there by hand) must not keep the
 * others from working: it is reported and left out.  What can fail here
 * touches memory only, so no subtransaction is needed to go on.
 */
static void
load_or_report(const OutboxQueryRow *r, const int *columns, const OutboxHandlerRow *row, MemoryContext context,
			   OutboxHandlerLoadedCallback loaded, void *arg)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	OutboxHandler *volatile handler = NULL;

	PG_TRY();
	{
		handler = load_handler(r, columns, row, context);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(oldcontext);
		edata = CopyErrorData();
		FlushErrorState();
		MemoryContextDelete(context);
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("outbox cannot use handler %d: %s", row->id, edata->message)));
		FreeErrorData(edata);
	}
	PG_END_TRY();
	if (handler != NULL)
		loaded(arg, handler);
}

/* Where the options are in the result. */
static void
find_columns(TupleDesc desc, int *columns)
{
	for (int i = 0; i < (int) lengthof(options); i++)
	{
		columns[i] = SPI_fnumber(desc, options[i].column);
		if (columns[i] <= 0)
			elog(ERROR, "outbox.handler has no column \"%s\"", options[i].column);
	}
}

void
outbox_load_handlers(OutboxHandlerRowCallback row_callback,
					 OutboxHandlerLoadedCallback loaded_callback, void *arg)
{
	SPITupleTable *table;
	int			columns[lengthof(options)];
	uint64		n;

	SPI_connect();
	n = outbox_execute(&load_plan, NULL, NULL, true, 0, SPI_OK_SELECT);
	table = SPI_tuptable;
	find_columns(table->tupdesc, columns);
	for (uint64 i = 0; i < n; i++)
	{
		OutboxQueryRow reader = {table->vals[i], table->tupdesc};
		OutboxHandlerRow row;
		MemoryContext context;

		load_row(&reader, &row);
		context = row_callback(arg, &row);
		if (context != NULL)
			load_or_report(&reader, columns, &row, context, loaded_callback, arg);
	}
	SPI_finish();
}
