/*-------------------------------------------------------------------------
 *
 * inbox.c
 *		outbox.accept(): once only, for receivers that are PostgreSQL.
 *
 * Runs in the receiver's backend and transaction.  The primary key of
 * outbox.inbox does the work: of two transactions that accept the same
 * message at once, the second waits for the first, and gets false if that
 * commits and true if it rolls back.  An entry past its time is taken over
 * as if it had been pruned already, so that the answer does not depend on
 * when outbox.prune() runs.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "consume/arguments.h"

/* Both go into an index entry. */
#define MAX_NAME_BYTES 1000
#define MAX_TTL_DAYS 36525

/* The first look spares a duplicate the row lock that ON CONFLICT DO UPDATE takes even when it updates nothing. */
static OutboxPlan seen_plan = {
	.sql = "SELECT FROM outbox.inbox i WHERE i.source OPERATOR(pg_catalog.=) $1 "
	"AND i.message_id OPERATOR(pg_catalog.=) $2 AND i.expires_at OPERATOR(pg_catalog.>) $3",
	.nargs = 3,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID},
};

static OutboxPlan accept_plan = {
	.sql = "INSERT INTO outbox.inbox AS i (source, message_id, expires_at) VALUES ($1, $2, $4) "
	"ON CONFLICT (source, message_id) DO UPDATE SET expires_at = EXCLUDED.expires_at, accepted_at = EXCLUDED.accepted_at "
	"WHERE i.expires_at OPERATOR(pg_catalog.<=) $3",
	.nargs = 4,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
};

static Datum
name_argument(FunctionCallInfo fcinfo, int n, const char *name)
{
	text	   *value;

	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name),
				 errhint("Pass who sent the message and the idempotency key it came with.")));
	value = PG_GETARG_TEXT_PP(n);
	if (VARSIZE_ANY_EXHDR(value) == 0 || VARSIZE_ANY_EXHDR(value) > MAX_NAME_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must have 1 to %d bytes", name, MAX_NAME_BYTES),
				 errhint("Pass who sent the message and the idempotency key it came with.")));
	return PointerGetDatum(value);
}

PG_FUNCTION_INFO_V1(outbox_sql_accept);

/* outbox.accept(source, message_id, ttl) */
Datum
outbox_sql_accept(PG_FUNCTION_ARGS)
{
	TimestampTz now = GetCurrentTimestamp();
	OutboxSecurity security;
	Datum		values[4];
	bool		accepted = false;
	ErrorContextCallback context = {error_context_stack, outbox_hint_at_snapshot, NULL};

	values[0] = name_argument(fcinfo, 0, "source");
	values[1] = name_argument(fcinfo, 1, "message_id");
	values[2] = TimestampTzGetDatum(now);
	values[3] = TimestampTzGetDatum(outbox_interval_argument(fcinfo, 2, "ttl", now, false, MAX_TTL_DAYS));
	outbox_require_writable("outbox.accept()");

	outbox_become_owner_to_write(&security, "inbox");
	SPI_connect();
	error_context_stack = &context;
	if (outbox_execute_by_index(&seen_plan, values, NULL, 1) == 0)
		accepted = outbox_execute(&accept_plan, values, NULL, false, 0, SPI_OK_INSERT) > 0;
	error_context_stack = context.previous;
	SPI_finish();
	outbox_become_caller(&security);
	PG_RETURN_BOOL(accepted);
}
