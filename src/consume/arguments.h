/*-------------------------------------------------------------------------
 *
 * arguments.h
 *		Arguments of the consumers' functions, checked.
 *
 * Each raises null_value_not_allowed, invalid_parameter_value or
 * datetime_field_overflow with a hint.  Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ARGUMENTS_H
#define OUTBOX_ARGUMENTS_H

#include "fmgr.h"

#include "outbox.h"

/* The longest lease and the longest wait before a retry. */
#define OUTBOX_MAX_LEASE_DAYS 30
#define OUTBOX_MAX_AFTER_DAYS 365

/* The name of a handler. */
extern char *outbox_handler_argument(FunctionCallInfo fcinfo, int n);

extern pg_uuid_t *outbox_id_argument(FunctionCallInfo fcinfo, int n);

extern int32 outbox_int_argument(FunctionCallInfo fcinfo, int n, const char *name, int32 min, int32 max);

/* An interval that is not NULL, positive (or zero if allowed), and at most so many days, from now on. */
extern TimestampTz outbox_interval_argument(FunctionCallInfo fcinfo, int n, const char *name,
											TimestampTz now, bool zero, int max_days);

/* The end of a lease. */
extern TimestampTz outbox_lease_argument(FunctionCallInfo fcinfo, int n, TimestampTz now);

/* A code for an outcome; NULL for NULL. */
extern char *outbox_code_argument(FunctionCallInfo fcinfo, int n);

/* An error text, cut to what is kept of one; NULL for NULL. */
extern char *outbox_error_argument(FunctionCallInfo fcinfo, int n);

#endif							/* OUTBOX_ARGUMENTS_H */
