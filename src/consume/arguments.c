/*-------------------------------------------------------------------------
 *
 * arguments.c
 *		Arguments of the consumers' functions, checked.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "consume/arguments.h"
#include "guc.h"
#include "policy/answer_headers.h"

static void
refuse_null(FunctionCallInfo fcinfo, int n, const char *name, const char *hint)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name),
				 errhint("%s", hint)));
}

char *
outbox_handler_argument(FunctionCallInfo fcinfo, int n)
{
	refuse_null(fcinfo, n, "handler", "Pass the name of a pull handler.");
	return text_to_cstring(PG_GETARG_TEXT_PP(n));
}

pg_uuid_t *
outbox_id_argument(FunctionCallInfo fcinfo, int n)
{
	refuse_null(fcinfo, n, "message id", "Pass the id that outbox.claim() returned.");
	return PG_GETARG_UUID_P(n);
}

int32
outbox_int_argument(FunctionCallInfo fcinfo, int n, const char *name, int32 min, int32 max)
{
	int32		value;

	refuse_null(fcinfo, n, name, "Pass a number.");
	value = PG_GETARG_INT32(n);
	if (value < min || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid %s: %d", name, value),
				 errhint("It must be from %d to %d.", min, max)));
	return value;
}

TimestampTz
outbox_interval_argument(FunctionCallInfo fcinfo, int n, const char *name,
						 TimestampTz now, bool zero, int max_days)
{
	TimestampTz end;

	refuse_null(fcinfo, n, name, "Pass an interval such as '5 minutes'.");
	end = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(now),
												  PG_GETARG_DATUM(n)));
	if (TIMESTAMP_NOT_FINITE(end) || end < now || (end == now && !zero) ||
		end - now > max_days * USECS_PER_DAY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid %s: %s", name,
						DatumGetCString(DirectFunctionCall1(interval_out, PG_GETARG_DATUM(n)))),
				 zero ? errhint_plural("It must not be negative, and at most %d day.",
									   "It must not be negative, and at most %d days.",
									   max_days, max_days) :
				 errhint_plural("It must be longer than zero and at most %d day.",
								"It must be longer than zero and at most %d days.",
								max_days, max_days)));
	return end;
}

TimestampTz
outbox_lease_argument(FunctionCallInfo fcinfo, int n, TimestampTz now)
{
	return outbox_interval_argument(fcinfo, n, "lease", now, false, OUTBOX_MAX_LEASE_DAYS);
}

char *
outbox_code_argument(FunctionCallInfo fcinfo, int n)
{
	char	   *code;

	if (PG_ARGISNULL(n))
		return NULL;
	code = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (!outbox_code_is_valid(code, strlen(code)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid code: \"%s\"", code),
				 errhint("A code consists of 1 to %d letters, digits, dots, dashes and underscores.",
						 OUTBOX_CODE_LEN - 1)));
	return code;
}

char *
outbox_error_argument(FunctionCallInfo fcinfo, int n)
{
	char	   *error;
	int			len;

	if (PG_ARGISNULL(n))
		return NULL;
	error = text_to_cstring(PG_GETARG_TEXT_PP(n));
	len = strlen(error);
	if (len > outbox_max_response_capture)
		error[pg_mbcliplen(error, len, outbox_max_response_capture)] = '\0';
	return error;
}
