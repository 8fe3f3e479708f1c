/*-------------------------------------------------------------------------
 *
 * unsent.c
 *		Tells an operator that requests cannot leave this machine.
 *
 * See unsent.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "dispatch/unsent.h"
#include "http/transport.h"
#include "worker/clock.h"

#define REPORT_EVERY_MS (60 * 1000)

static char present[HTTP_ERROR_LEN] = "";
static TimestampTz reported_at = 0;

void
outbox_unsent_report(const char *handler, const char *problem)
{
	TimestampTz now = outbox_steady_time();

	strlcpy(present, problem, sizeof(present));

	/* A clock that was set back is no reason to fall silent. */
	if (now >= reported_at && !TimestampDifferenceExceeds(reported_at, now, REPORT_EVERY_MS))
		return;
	reported_at = now;
	ereport(WARNING,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("outbox dispatcher could not send to handler \"%s\": %s", handler, problem),
			 errdetail("Nothing was sent and no attempt was spent. It goes on trying."),
			 errhint("The cause lies with this server, not with the receiver: its limits of open files or memory, its range of local ports (net.ipv4.ip_local_port_range), or what it is allowed to connect to.")));
}

void
outbox_unsent_over(void)
{
	present[0] = '\0';
}

const char *
outbox_unsent_problem(void)
{
	return present[0] != '\0' ? present : NULL;
}
