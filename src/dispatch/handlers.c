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

#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "dispatch/handlers.h"
#include "format/request.h"
#include "guc.h"
#include "policy/retry_policy.h"

#define MS(column) OUTBOX_MS_COLUMN(column)

/* The order of these columns is that of the enum below. */
static OutboxPlan load_plan = {
	.sql = "SELECT h.id, s.paused_at IS NOT NULL, s.breaker, s.breaker_until, s.failing_since, s.breaker_reason, "
	"pg_catalog.hashtextextended(pg_catalog.concat(h::pg_catalog.text, x.secrets::pg_catalog.text, x.expire::pg_catalog.text, x.credentials, "
	" pg_catalog.current_setting('outbox.user_agent')), 0), "
	"h.name, h.format, h.url, h.ordered, h.on_dead, h.concurrency, h.batch_size, "
	MS("batch_wait") ", h.rate_limit, h.rate_burst, h.breaker_threshold, "
	MS("breaker_wait") ", " MS("breaker_wait_max") ", " MS("disable_after") ", h.on_settle, x.secrets, x.expire, x.credentials, "
	OUTBOX_RETRY_COLUMNS ", " MS("timeout") ", " MS("connect_timeout") ", h.http_version, h.unix_socket, "
	"h.tls_ca_file, h.tls_certificate_file, h.tls_key_file, h.headers "
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
	COL_FINGERPRINT,
	COL_NAME,
	COL_FORMAT,
	COL_URL,
	COL_ORDERED,
	COL_ON_DEAD,
	COL_CONCURRENCY,
	COL_BATCH_SIZE,
	COL_BATCH_WAIT,
	COL_RATE_LIMIT,
	COL_RATE_BURST,
	COL_BREAKER_THRESHOLD,
	COL_BREAKER_WAIT,
	COL_BREAKER_WAIT_MAX,
	COL_DISABLE_AFTER,
	COL_ON_SETTLE,
	COL_SECRETS,
	COL_SECRETS_EXPIRE,
	COL_CREDENTIALS,
	COL_RETRY,
	COL_TIMEOUT = COL_RETRY + OUTBOX_RETRY_NCOLUMNS,
	COL_CONNECT_TIMEOUT,
	COL_HTTP_VERSION,
	COL_UNIX_SOCKET,
	COL_TLS_CA_FILE,
	COL_TLS_CERTIFICATE_FILE,
	COL_TLS_KEY_FILE,
	COL_HEADERS
} LoadColumn;

/* One row of the result. */
typedef struct RowReader
{
	HeapTuple	tuple;
	TupleDesc	desc;
} RowReader;

static Datum
get(const RowReader *r, LoadColumn column, bool *isnull)
{
	return SPI_getbinval(r->tuple, r->desc, column, isnull);
}

static int32
get_int(const RowReader *r, LoadColumn column)
{
	bool		isnull;
	Datum		d = get(r, column, &isnull);

	return isnull ? 0 : DatumGetInt32(d);
}

static int64
get_ms(const RowReader *r, LoadColumn column)
{
	bool		isnull;
	Datum		d = get(r, column, &isnull);

	return isnull ? 0 : DatumGetInt64(d);
}

static bool
get_bool(const RowReader *r, LoadColumn column)
{
	bool		isnull;
	Datum		d = get(r, column, &isnull);

	return !isnull && DatumGetBool(d);
}

static double
get_double(const RowReader *r, LoadColumn column)
{
	bool		isnull;
	Datum		d = get(r, column, &isnull);

	return isnull ? 0 : DatumGetFloat8(d);
}

/* A copy in the current context, NULL for NULL. */
static char *
get_text(const RowReader *r, LoadColumn column)
{
	bool		isnull;
	Datum		d = get(r, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(d);
}

static Jsonb *
get_jsonb(const RowReader *r, LoadColumn column)
{
	bool		isnull;
	Datum		d = get(r, column, &isnull);

	return isnull ? NULL : DatumGetJsonbPCopy(d);
}

/* The signing secrets, newest first; returns how many. */
static int
get_secrets(const RowReader *r, OutboxSecret **secrets)
{
	bool		isnull;
	Datum		d = get(r, COL_SECRETS, &isnull);
	Datum	   *texts;
	Datum	   *expire;
	int			n;

	if (isnull)
		return 0;
	deconstruct_array(DatumGetArrayTypeP(d), TEXTOID, -1, false, TYPALIGN_INT, &texts, NULL, &n);
	deconstruct_array(DatumGetArrayTypeP(get(r, COL_SECRETS_EXPIRE, &isnull)), TIMESTAMPTZOID,
					  sizeof(TimestampTz), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &expire, NULL, &n);
	*secrets = palloc(sizeof(OutboxSecret) * n);
	for (int i = 0; i < n; i++)
	{
		(*secrets)[i].text = TextDatumGetCString(texts[i]);
		(*secrets)[i].expires_at = DatumGetTimestampTz(expire[i]);
	}
	return n;
}

/* How its requests are written.  A format this library does not know cannot get past create_handler(). */
static void
load_form(const RowReader *r, OutboxHandler *handler)
{
	OutboxRequestOptions options;
	OutboxSecret *secrets = NULL;
	char	   *format = get_text(r, COL_FORMAT);

	memset(&options, 0, sizeof(options));
	options.format = outbox_format_by_name(format);
	if (options.format == NULL)
		elog(ERROR, "unknown format \"%s\" of handler \"%s\"", format, handler->name);
	options.handler = handler->name;
	options.batch = handler->batch_size > 1;
	options.source = outbox_event_source(get_database_name(MyDatabaseId));
	options.user_agent = outbox_user_agent;
	options.authorization = get_text(r, COL_CREDENTIALS);
	options.headers = get_jsonb(r, COL_HEADERS);
	options.nsecrets = get_secrets(r, &secrets);
	options.secrets = secrets;
	handler->form = outbox_request_form(&options);
	handler->target.headers = handler->form->headers;
	handler->target.nheaders = handler->form->nheaders;
}

static OutboxBreakerState
get_breaker_state(const RowReader *r)
{
	char	   *name = get_text(r, COL_BREAKER);

	if (name == NULL || strcmp(name, "closed") == 0)
		return OUTBOX_BREAKER_CLOSED;
	/* A probe that was out when the process ended is not out any more. */
	return OUTBOX_BREAKER_OPEN;
}

static void
load_row(const RowReader *r, OutboxHandlerRow *row)
{
	char	   *reason = get_text(r, COL_BREAKER_REASON);

	row->id = get_int(r, COL_ID);
	row->paused = get_bool(r, COL_PAUSED);
	row->fingerprint = get_ms(r, COL_FINGERPRINT);
	row->breaker = get_breaker_state(r);
	row->breaker_until = get_ms(r, COL_BREAKER_UNTIL);
	row->failing_since = get_ms(r, COL_FAILING_SINCE);
	strlcpy(row->breaker_reason, reason ? reason : "", sizeof(row->breaker_reason));
}

static void
load_target(const RowReader *r, OutboxHandler *handler)
{
	HttpTarget *target = &handler->target;
	char	   *version = get_text(r, COL_HTTP_VERSION);

	target->url = get_text(r, COL_URL);
	target->timeout_ms = Max(1, get_ms(r, COL_TIMEOUT));
	target->connect_timeout_ms = Max(1, get_ms(r, COL_CONNECT_TIMEOUT));
	target->http_version = strcmp(version, "2") == 0 ? 20 : 11;
	target->max_connections = handler->concurrency;
	target->unix_socket = get_text(r, COL_UNIX_SOCKET);
	target->tls_ca_file = get_text(r, COL_TLS_CA_FILE);
	target->tls_certificate_file = get_text(r, COL_TLS_CERTIFICATE_FILE);
	target->tls_key_file = get_text(r, COL_TLS_KEY_FILE);
}

/* The whole configuration, allocated in context. */
static OutboxHandler *
load_handler(const RowReader *r, const OutboxHandlerRow *row, MemoryContext context)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	OutboxHandler *handler = palloc0(sizeof(OutboxHandler));
	char	   *on_dead = get_text(r, COL_ON_DEAD);

	handler->context = context;
	handler->id = row->id;
	handler->fingerprint = row->fingerprint;
	handler->name = get_text(r, COL_NAME);
	handler->ordered = get_bool(r, COL_ORDERED);
	handler->block_on_dead = strcmp(on_dead, "block") == 0;
	handler->concurrency = get_int(r, COL_CONCURRENCY);
	handler->batch_size = get_int(r, COL_BATCH_SIZE);
	handler->batch_wait = get_ms(r, COL_BATCH_WAIT);
	handler->rate_limit = get_double(r, COL_RATE_LIMIT);
	handler->rate_burst = get_int(r, COL_RATE_BURST);
	handler->breaker.threshold = get_int(r, COL_BREAKER_THRESHOLD);
	handler->breaker.wait = get_ms(r, COL_BREAKER_WAIT) * 1000;
	handler->breaker.wait_max = get_ms(r, COL_BREAKER_WAIT_MAX) * 1000;
	handler->breaker.disable_after = get_ms(r, COL_DISABLE_AFTER) * 1000;
	handler->on_settle = get_text(r, COL_ON_SETTLE);
	load_form(r, handler);
	outbox_read_retry_policy(r->tuple, r->desc, COL_RETRY, &handler->retry);
	load_target(r, handler);
	MemoryContextSwitchTo(oldcontext);
	return handler;
}

/*
 * One handler whose row makes no sense (put there by hand) must not keep the
 * others from working: it is reported and left out.  What can fail here
 * touches memory only, so no subtransaction is needed to go on.
 */
static void
load_or_report(const RowReader *r, const OutboxHandlerRow *row, MemoryContext context,
			   OutboxHandlerLoadedCallback loaded, void *arg)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	OutboxHandler *volatile handler = NULL;

	PG_TRY();
	{
		handler = load_handler(r, row, context);
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

void
outbox_load_handlers(OutboxHandlerRowCallback row_callback,
					 OutboxHandlerLoadedCallback loaded_callback, void *arg)
{
	SPITupleTable *table;
	uint64		n;

	SPI_connect();
	n = outbox_execute(&load_plan, NULL, NULL, true, 0, SPI_OK_SELECT);
	table = SPI_tuptable;
	for (uint64 i = 0; i < n; i++)
	{
		RowReader	reader = {table->vals[i], table->tupdesc};
		OutboxHandlerRow row;
		MemoryContext context;

		load_row(&reader, &row);
		context = row_callback(arg, &row);
		if (context != NULL)
			load_or_report(&reader, &row, context, loaded_callback, arg);
	}
	SPI_finish();
}
