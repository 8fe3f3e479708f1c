/*-------------------------------------------------------------------------
 *
 * redact.c
 *		Outcomes whose error text is being redacted before it is written.
 *
 * See redact.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/redaction.h"
#include "compat.h"
#include "dispatch/redact.h"
#include "shared/function_slot.h"
#include "shared/redactions.h"

/* A text is withheld that is not back after this time. */
#define LONGEST_WAIT_US (2 * USECS_PER_SEC)

static OutboxDatabase *database = NULL;
static uint64 last_ticket = 0;
static int	nasked = 0;			/* asked for and not yet answered, or never to be */
static bool given_up = false;

/* The oldest first.  Those that were asked for come before all others. */
static dlist_head unredacted = DLIST_STATIC_INIT(unredacted);

void
outbox_redact_init(OutboxDatabase *db)
{
	database = db;
	outbox_redactions_reset(db);
}

/* Instead of the raw text, of which nothing is left. */
static void
set_text(OutboxDelivery *delivery, const char *text)
{
	MemoryContext context = GetMemoryChunkContext(delivery->error);

	memset(delivery->error, 0, strlen(delivery->error));
	pfree(delivery->error);
	delivery->error = text != NULL && text[0] != '\0' ? MemoryContextStrdup(context, text) : NULL;
	delivery->error_is_raw = false;
}

/* Ask for as many as there is room for. */
static void
ask(void)
{
	dlist_iter	iter;
	bool		asked = false;

	if (given_up)
		return;
	dlist_foreach(iter, &unredacted)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);

		if (delivery->ticket != 0)
			continue;
		if (!outbox_redaction_ask(database, last_ticket + 1, delivery->error))
			break;
		delivery->ticket = ++last_ticket;
		nasked = Min(nasked + 1, OUTBOX_REDACTIONS);
		asked = true;
	}
	if (asked)
		outbox_function_slots_wake(database);
}

bool
outbox_redact_keep(OutboxDelivery *delivery)
{
	if (delivery->error == NULL || !delivery->error_is_raw || !outbox_redaction_is_set())
		return false;
	if (given_up)
	{
		set_text(delivery, OUTBOX_TEXT_WITHHELD);
		return false;
	}
	delivery->ticket = 0;
	dlist_push_tail(&unredacted, &delivery->link);
	ask();
	return true;
}

/* The one with that ticket; those that have one are at the front. */
static OutboxDelivery *
find_asked(uint64 ticket)
{
	dlist_iter	iter;

	dlist_foreach(iter, &unredacted)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);

		if (delivery->ticket == ticket)
			return delivery;
		if (delivery->ticket == 0)
			break;
	}
	return NULL;
}

/* The next answer, of one that still waits for it. */
static OutboxDelivery *
take_answer(void)
{
	uint64		ticket;
	char	   *text;

	while (outbox_redaction_collect(database, &ticket, &text))
	{
		OutboxDelivery *delivery = ticket != 0 ? find_asked(ticket) : NULL;

		nasked = Max(nasked - 1, 0);
		if (delivery == NULL)
			continue;
		set_text(delivery, text);
		return delivery;
	}
	return NULL;
}

OutboxDelivery *
outbox_redact_next_done(TimestampTz now)
{
	OutboxDelivery *delivery;

	if (dlist_is_empty(&unredacted) && nasked == 0)
		return NULL;
	delivery = take_answer();
	if (dlist_is_empty(&unredacted))
		return NULL;
	if (delivery == NULL && (given_up || outbox_redact_next() <= now))
	{
		delivery = dlist_head_element(OutboxDelivery, link, &unredacted);
		set_text(delivery, OUTBOX_TEXT_WITHHELD);
	}
	if (delivery != NULL)
		dlist_delete(&delivery->link);
	ask();
	return delivery;
}

TimestampTz
outbox_redact_next(void)
{
	if (dlist_is_empty(&unredacted))
		return DT_NOEND;
	return dlist_head_element(OutboxDelivery, link, &unredacted)->answered_at + LONGEST_WAIT_US;
}

bool
outbox_redact_is_busy(void)
{
	return !dlist_is_empty(&unredacted);
}

void
outbox_redact_give_up(void)
{
	given_up = true;
}
