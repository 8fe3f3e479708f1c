/*-------------------------------------------------------------------------
 *
 * secret_sql.c
 *		SQL functions for signing secrets.
 *
 * Internal: called by outbox.rotate_secret() and outbox.create_handler(),
 * which run as the extension's owner.  Any backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "format/signature.h"

PG_FUNCTION_INFO_V1(outbox_sql_public_key);

/* outbox_internal.public_key(secret) */
Datum
outbox_sql_public_key(PG_FUNCTION_ARGS)
{
	char	   *result = outbox_public_key(text_to_cstring(PG_GETARG_TEXT_PP(0)));

	if (result == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(result));
}
