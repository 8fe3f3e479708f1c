/*-------------------------------------------------------------------------
 *
 * arguments.h
 *		The arguments of a running call as names and texts, with those that
 *		came in its object "options" among them.
 *
 * PostgreSQL finds a function by the names of its arguments, so a mistyped
 * one is "function does not exist" before anything of ours runs.  In options
 * the names are looked up here: one that is unknown is named, with the
 * nearest that there is.
 *
 * Secrets are withheld on the way: secret.h.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HANDLER_ARGUMENTS_H
#define OUTBOX_HANDLER_ARGUMENTS_H

#include "outbox.h"

#include "fmgr.h"

#include "handler/secret.h"

/*
 * The arguments of this call that are not NULL, as two arrays of text, read
 * and written as the caller would: search_path and settings are the session's.
 * What is a secret goes into withheld instead.  Raises invalid_parameter_value
 * for options that are no object or name what the function does not take, and
 * what the type of an argument says of its value.
 */
extern void outbox_collect_arguments(FunctionCallInfo fcinfo, Datum *names, Datum *texts, OutboxWithheld *withheld);

#endif							/* OUTBOX_HANDLER_ARGUMENTS_H */
