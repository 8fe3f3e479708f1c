/*-------------------------------------------------------------------------
 *
 * ahead.c
 *		Messages that were staged while the clock was ahead.
 *
 * See ahead.h.  Those messages are found by their ids, which lie between the
 * clock and the highest id.  Once the clock has been set back all new ids lie
 * there as well, so they are not gone through again and again: twice after
 * each step of the clock and each start, the second time for transactions
 * that had not committed at the first.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"

#include "common/session.h"
#include "dispatch/ahead.h"
#include "stage/message_id.h"

/* Ids may be so far ahead of the clock without any step of it: many were drawn at once. */
#define MAX_ID_LEAD_MS (60 * 1000)

/* A lead that grows by more than this since the last look is another step back. */
#define STEP_MS (10 * 1000)

static int64 last_lead = 0;
static int	passes_left = 0;
static pg_uuid_t after;			/* where the pass under way has got to; zeros: at its start */

/* The last id of those that were moved; NULL once there are no more. */
static OutboxPlan bring_forward_plan = {
	.sql = "SELECT outbox_internal.bring_forward($1)",
	.nargs = 1,
	.argtypes = {UUIDOID},
};

static bool
bring_forward(void)
{
	Datum		values[1] = {UUIDPGetDatum(&after)};
	bool		isnull;
	Datum		reached;

	SPI_connect();
	outbox_execute(&bring_forward_plan, values, NULL, false, 1, SPI_OK_SELECT);
	reached = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (!isnull)
		after = *DatumGetUUIDP(reached);
	SPI_finish();
	return !isnull;
}

static void
note_lead(int64 lead)
{
	if (lead <= MAX_ID_LEAD_MS)
		passes_left = 0;
	else if (lead > last_lead + STEP_MS)
	{
		ereport(WARNING,
				(errmsg("outbox message ids are %lld seconds ahead of the clock", (long long) (lead / 1000)),
				 errdetail("The clock was ahead and has been set back. Ids keep increasing, but their times are wrong until the clock has caught up.")));
		passes_left = 2;
		memset(&after, 0, sizeof(after));
	}
	last_lead = Max(lead, 0);
}

bool
outbox_ahead_look(void)
{
	/* After a restart nobody may have drawn an id yet. */
	outbox_message_ids_seed();
	note_lead(outbox_message_id_lead());
	if (passes_left == 0)
		return false;
	if (bring_forward())
		return true;
	memset(&after, 0, sizeof(after));
	passes_left--;
	return false;
}
