/*-------------------------------------------------------------------------
 *
 * attempt_log.c
 *		Rows of outbox.attempt, as far as outbox.log_attempts asks for them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/session.h"
#include "guc.h"
#include "table/attempt_log.h"

static OutboxPlan log_plan = {
	.sql = "INSERT INTO outbox.attempt (message_id, handler_id, attempt, finished_at, duration, outcome, http_status, code, error, response_headers) "
	"VALUES ($1, $2, $3, $4, pg_catalog.make_interval(secs => $5), $6, $7, $8, $9, $10::pg_catalog.jsonb) ON CONFLICT DO NOTHING",
	.nargs = 10,
	.argtypes = {UUIDOID, INT4OID, INT4OID, TIMESTAMPTZOID, FLOAT8OID, INT2OID, INT2OID, TEXTOID, TEXTOID, TEXTOID},
};

/* Those in the middle, of which there is one more with each attempt. */
static OutboxPlan thin_plan = {
	.sql = "DELETE FROM outbox.attempt a WHERE a.message_id OPERATOR(pg_catalog.=) $1 AND a.handler_id OPERATOR(pg_catalog.=) $2 "
	"AND a.attempt OPERATOR(pg_catalog.>) " CppAsString2(OUTBOX_LOGGED_FIRST) " AND a.attempt OPERATOR(pg_catalog.<=) $3",
	.nargs = 3,
	.argtypes = {UUIDOID, INT4OID, INT4OID},
};

bool
outbox_should_log(OutboxState outcome)
{
	switch (outbox_log_attempts)
	{
		case OUTBOX_LOG_ATTEMPTS_ALL:
			return true;
		case OUTBOX_LOG_ATTEMPTS_FAILURES:
			return outcome != OUTBOX_DELIVERED;
		default:
			return false;
	}
}

void
outbox_log_attempt(const OutboxAttempt *attempt)
{
	Datum		values[10] = {0};
	char		nulls[11] = "          ";

	values[0] = UUIDPGetDatum(&attempt->message_id);
	values[1] = Int32GetDatum(attempt->handler_id);
	values[2] = Int32GetDatum(attempt->attempt);
	values[3] = TimestampTzGetDatum(attempt->finished_at);
	values[4] = Float8GetDatum(attempt->duration_us / 1e6);
	if (attempt->duration_us < 0)
		nulls[4] = 'n';
	values[5] = Int16GetDatum(attempt->outcome);
	values[6] = Int16GetDatum(attempt->http_status);
	if (attempt->http_status == 0)
		nulls[6] = 'n';
	outbox_bind_text(values, nulls, 7, attempt->code);
	outbox_bind_text(values, nulls, 8, attempt->error);
	outbox_bind_text(values, nulls, 9, attempt->response_headers);
	outbox_execute(&log_plan, values, nulls, false, 0, SPI_OK_INSERT);
	if (attempt->attempt > OUTBOX_LOGGED_FIRST + OUTBOX_LOGGED_LAST)
	{
		values[2] = Int32GetDatum(attempt->attempt - OUTBOX_LOGGED_LAST);
		outbox_execute(&thin_plan, values, NULL, false, 0, SPI_OK_DELETE);
	}
}
