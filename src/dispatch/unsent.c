/*-------------------------------------------------------------------------
 *
 * unsent.c
 *		Tells an operator that requests cannot leave this machine.
 *
 * See unsent.h.  A shortage is over when the handler that met it last has
 * sent something, or when nobody has met it for a minute: what was to be sent
 * may have been cancelled.  One that is back within a minute is the same one,
 * since several handlers may meet it in turn, or one on some connections only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "dispatch/unsent.h"
#include "shared/shmem.h"
#include "worker/clock.h"

#define REPORT_EVERY_MS (60 * 1000)
#define FORGOTTEN_AFTER_US (60 * USECS_PER_SEC)

/* In words; empty: there is none at present. */
static char present[OUTBOX_ERROR_LEN] = "";
static char met_by[NAMEDATALEN] = "";
static TimestampTz since = 0;	/* by the wall clock */
static TimestampTz met_at = 0;	/* by the steady one, as what follows; 0: never */
static TimestampTz reported_at = 0;

/* What an operator can do about it. */
static const char *
cure_of(HttpShortage shortage)
{
	switch (shortage)
	{
		case HTTP_LACKS_PORTS:
			return "it lifts when connections there have ended, or with a wider net.ipv4.ip_local_port_range";
		case HTTP_LACKS_DESCRIPTORS:
			return "it lifts with a higher limit of open files (ulimit -n, fs.file-max), or a lower outbox.max_in_flight";
		case HTTP_LACKS_MEMORY:
			return "it lifts when memory is free on this machine, or with a lower outbox.max_in_flight";
		case HTTP_LACKS_PERMISSION:
			return "it lifts when this machine's firewall or policy permits it";
		case HTTP_LACKS_NOTHING:
			break;
	}
	return "it is tried again and again";
}

static bool
is_forgotten(TimestampTz now)
{
	return met_at == 0 || now - met_at > FORGOTTEN_AFTER_US;
}

void
outbox_unsent_report(const char *handler, HttpShortage shortage, const char *problem)
{
	TimestampTz now = outbox_steady_time();

	if (is_forgotten(now))
		since = outbox_to_wall(now);
	met_at = now;
	strlcpy(met_by, handler, sizeof(met_by));
	snprintf(present, sizeof(present), "%s (handler \"%s\"); %s", problem, handler, cure_of(shortage));

	/* A clock that was set back is no reason to fall silent. */
	if (now >= reported_at && !TimestampDifferenceExceeds(reported_at, now, REPORT_EVERY_MS))
		return;
	reported_at = now;
	ereport(WARNING,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("outbox dispatcher could not send to handler \"%s\": %s", handler, problem),
			 errdetail("Nothing was sent and no attempt was spent. It goes on trying."),
			 errhint("The cause lies with this server, not with the receiver: %s.", cure_of(shortage))));
}

void
outbox_unsent_over(const char *handler)
{
	if (present[0] != '\0' && strcmp(met_by, handler) == 0)
		present[0] = '\0';
}

const char *
outbox_unsent_problem(TimestampTz *began)
{
	if (present[0] == '\0' || is_forgotten(outbox_steady_time()))
		return NULL;
	*began = since;
	return present;
}
