/*-------------------------------------------------------------------------
 *
 * redactions.c
 *		Texts on their way to outbox.redact_function and back.
 *
 * See redactions.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"

#include "shared/redactions.h"

/* Is the worker that took it still there?  Under the slot's mutex. */
static bool
is_attended(const OutboxDatabase *db, const OutboxRedaction *place)
{
	for (int i = 0; i < OUTBOX_FUNCTION_PLACES; i++)
	{
		if (db->function_slots[i].pid == place->worker)
			return true;
	}
	return false;
}

/* Take a place that is in one of these states into another one; NULL if there is none. */
static OutboxRedaction *
move_place(OutboxDatabase *db, OutboxRedactionState from, OutboxRedactionState to)
{
	OutboxRedaction *found = NULL;

	SpinLockAcquire(&db->mutex);
	for (int i = 0; i < OUTBOX_REDACTIONS && found == NULL; i++)
	{
		OutboxRedaction *place = &db->redactions[i];

		if (place->state != from)
			continue;
		place->state = to;
		place->worker = MyProcPid;
		found = place;
	}
	SpinLockRelease(&db->mutex);
	return found;
}

static void
set_state(OutboxDatabase *db, OutboxRedaction *place, OutboxRedactionState state)
{
	SpinLockAcquire(&db->mutex);
	place->state = state;
	SpinLockRelease(&db->mutex);
}

/* It is this process's: leave nothing in it. */
static void
free_place(OutboxDatabase *db, OutboxRedaction *place)
{
	memset(place->text, 0, sizeof(place->text));
	place->ticket = 0;
	set_state(db, place, OUTBOX_REDACTION_FREE);
}

/* Of workers that have ended without an answer. */
static void
free_abandoned(OutboxDatabase *db)
{
	for (int i = 0; i < OUTBOX_REDACTIONS; i++)
	{
		OutboxRedaction *place = &db->redactions[i];
		bool		abandoned;

		SpinLockAcquire(&db->mutex);
		abandoned = place->state == OUTBOX_REDACTION_TAKEN && !is_attended(db, place);
		SpinLockRelease(&db->mutex);
		if (abandoned)
			free_place(db, place);
	}
}

void
outbox_redactions_reset(OutboxDatabase *db)
{
	for (int i = 0; i < OUTBOX_REDACTIONS; i++)
	{
		OutboxRedaction *place = &db->redactions[i];
		bool		taken;

		SpinLockAcquire(&db->mutex);
		taken = place->state == OUTBOX_REDACTION_TAKEN;
		/* Its answer will be nobody's. */
		place->ticket = 0;
		if (!taken)
			place->state = OUTBOX_REDACTION_OURS;
		SpinLockRelease(&db->mutex);
		if (!taken)
			free_place(db, place);
	}
	free_abandoned(db);
}

static void
write_text(OutboxRedaction *place, const char *text)
{
	int			len = strlen(text);

	if (len >= (int) sizeof(place->text))
		len = pg_mbcliplen(text, len, sizeof(place->text) - 1);
	/* Nor is anything left behind a shorter one. */
	memset(place->text, 0, sizeof(place->text));
	memcpy(place->text, text, len);
}

bool
outbox_redaction_ask(OutboxDatabase *db, uint64 ticket, const char *text)
{
	OutboxRedaction *place = move_place(db, OUTBOX_REDACTION_FREE, OUTBOX_REDACTION_OURS);

	if (place == NULL)
	{
		free_abandoned(db);
		place = move_place(db, OUTBOX_REDACTION_FREE, OUTBOX_REDACTION_OURS);
	}
	if (place == NULL)
		return false;
	place->ticket = ticket;
	write_text(place, text);
	set_state(db, place, OUTBOX_REDACTION_ASKED);
	return true;
}

bool
outbox_redaction_collect(OutboxDatabase *db, uint64 *ticket, char **text)
{
	OutboxRedaction *place = move_place(db, OUTBOX_REDACTION_ANSWERED, OUTBOX_REDACTION_OURS);

	if (place == NULL)
		return false;
	*ticket = place->ticket;
	*text = place->is_null ? NULL : pstrdup(place->text);
	free_place(db, place);
	return true;
}

bool
outbox_redaction_is_asked(OutboxDatabase *db)
{
	bool		asked = false;

	SpinLockAcquire(&db->mutex);
	for (int i = 0; i < OUTBOX_REDACTIONS; i++)
		asked = asked || db->redactions[i].state == OUTBOX_REDACTION_ASKED;
	SpinLockRelease(&db->mutex);
	return asked;
}

int
outbox_redaction_take(OutboxDatabase *db, char **text)
{
	OutboxRedaction *place = move_place(db, OUTBOX_REDACTION_ASKED, OUTBOX_REDACTION_TAKEN);

	if (place == NULL)
		return -1;
	*text = pstrdup(place->text);
	return place - db->redactions;
}

void
outbox_redaction_answer(OutboxDatabase *db, int place, const char *text)
{
	OutboxRedaction *answered = &db->redactions[place];
	OutboxRedaction answer = {.is_null = text == NULL};

	write_text(&answer, text != NULL ? text : "");
	SpinLockAcquire(&db->mutex);
	/* Unless the slot has changed hands, and the place with it. */
	if (answered->state == OUTBOX_REDACTION_TAKEN && answered->worker == MyProcPid)
	{
		answered->is_null = answer.is_null;
		memcpy(answered->text, answer.text, sizeof(answer.text));
		answered->state = OUTBOX_REDACTION_ANSWERED;
	}
	SpinLockRelease(&db->mutex);
}
