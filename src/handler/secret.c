/*-------------------------------------------------------------------------
 *
 * secret.c
 *		Secrets on their way from a caller's argument into handler_secret.
 *
 * See secret.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "format/signature.h"
#include "handler/secret.h"
#include "shared/doorbell.h"
#include "table/row_writer.h"

/* The longest value of a header authorization. */
#define MAX_AUTHORIZATION 4096

PG_FUNCTION_INFO_V1(outbox_sql_store_secret);
PG_FUNCTION_INFO_V1(outbox_sql_is_given_secret);
PG_FUNCTION_INFO_V1(outbox_sql_stay_unseen);

static const char *const secret_options[] = {"secret", "authorization"};

static OutboxWithheld *current = NULL;

bool
outbox_is_secret_option(const char *name)
{
	for (int i = 0; i < lengthof(secret_options); i++)
	{
		if (strcmp(name, secret_options[i]) == 0)
			return true;
	}
	return false;
}

void
outbox_withhold(OutboxWithheld *withheld, char *name, char *value)
{
	withheld->options = lappend(withheld->options, name);
	withheld->values = lappend(withheld->values, value);
}

void
outbox_withheld_begin(OutboxWithheld *withheld)
{
	withheld->outer = current;
	current = withheld;
}

void
outbox_withheld_end(OutboxWithheld *withheld)
{
	current = withheld->outer;
}

/* What was given for the option to the call that is running; NULL for nothing. */
static char *
withheld_value(const char *option)
{
	ListCell   *name;
	ListCell   *value;

	if (current != NULL)
	{
		forboth(name, current->options, value, current->values)
		{
			if (strcmp(lfirst(name), option) == 0)
				return lfirst(value);
		}
	}
	return NULL;
}

static void
check_authorization(const char *value)
{
	size_t		len = strlen(value);
	bool		has_control = false;

	for (size_t i = 0; i < len; i++)
		has_control = has_control || (unsigned char) value[i] < ' ' || value[i] == 0x7f;
	if (has_control || len == 0 || len > MAX_AUTHORIZATION)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("authorization is empty, too long or has a control character"),
				 errhint("It is the value of the header authorization, such as Bearer and a token, of up to %d bytes.",
						 MAX_AUTHORIZATION)));
}

/* Not by a statement: its parameters would be there for whatever logs statements. */
static void
insert_secret(int32 handler_id, const char *kind, const char *secret, TimestampTz created_at)
{
	OutboxWriter writer;
	TupleTableSlot *row;

	outbox_writer_begin(&writer);
	row = outbox_writer_start(&writer, OUTBOX_TABLE_HANDLER_SECRET);
	outbox_row_set(row, Anum_handler_secret_handler_id, Int32GetDatum(handler_id));
	outbox_row_set_text(row, Anum_handler_secret_kind, kind);
	outbox_row_set_text(row, Anum_handler_secret_secret, secret);
	outbox_row_set(row, Anum_handler_secret_created_at, TimestampTzGetDatum(created_at));
	outbox_writer_insert(&writer, OUTBOX_TABLE_HANDLER_SECRET);
	outbox_writer_end(&writer);

	/* Whatever has become of the table's triggers. */
	outbox_doorbell_note_status();
}

/*
 * outbox_internal.store_secret(handler_id, kind, source, created_at)
 *
 * source is whsec or whsk for a new signing secret of that kind, else the
 * option that the secret was given with.  Returns what a receiver needs to
 * verify with it: the public key, if it has one, or the secret itself.
 */
Datum
outbox_sql_store_secret(PG_FUNCTION_ARGS)
{
	int32		handler_id = PG_GETARG_INT32(0);
	char	   *kind = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *source = text_to_cstring(PG_GETARG_TEXT_PP(2));
	TimestampTz created_at = PG_GETARG_TIMESTAMPTZ(3);
	bool		signs = strcmp(kind, "signing") == 0;
	char	   *secret;
	char	   *public_key;

	if (outbox_is_secret_option(source))
		secret = withheld_value(source);
	else
		secret = outbox_generate_secret(strcmp(source, "whsk") == 0);
	if (secret == NULL)
		elog(ERROR, "no value of option \"%s\" was given", source);

	if (signs)
		outbox_check_secret(secret);
	else
		check_authorization(secret);
	insert_secret(handler_id, kind, secret, created_at);

	if (!signs)
		PG_RETURN_NULL();
	public_key = outbox_public_key(secret);
	PG_RETURN_TEXT_P(cstring_to_text(public_key != NULL ? public_key : secret));
}

/* outbox_internal.is_given_secret(secret, option) */
Datum
outbox_sql_is_given_secret(PG_FUNCTION_ARGS)
{
	char	   *secret = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *given = withheld_value(text_to_cstring(PG_GETARG_TEXT_PP(1)));

	PG_RETURN_BOOL(given != NULL && strcmp(secret, given) == 0);
}

/* outbox_internal.stay_unseen(): until the function ends that calls it, which has to have a SET */
Datum
outbox_sql_stay_unseen(PG_FUNCTION_ARGS)
{
	outbox_stay_unseen();
	PG_RETURN_VOID();
}
