/*-------------------------------------------------------------------------
 *
 * guc.c
 *		Defines the outbox.* settings.
 *
 * Settings that make sense for one database are PGC_SUSET rather than
 * PGC_SIGHUP, because ALTER DATABASE ... SET refuses the latter; the
 * dispatcher reads them when it starts and again at every reload.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/xact.h"
#include "utils/guc.h"

#include "common/redaction.h"
#include "compat.h"
#include "guc.h"
#include "outbox.h"
#include "policy/blocked_networks.h"
#include "policy/logged_headers.h"

bool		outbox_enabled = true;
bool		outbox_settler = true;
int			outbox_max_databases = 64;
int			outbox_max_stat_handlers = 1000;
int			outbox_max_in_flight = 500;
int			outbox_max_memory = 64 * 1024;
int			outbox_rescan_interval = 60000;
int			outbox_settle_interval = 50;
int			outbox_shutdown_grace = 2000;
int			outbox_settle_synchronous_commit = SYNCHRONOUS_COMMIT_LOCAL_FLUSH;
int			outbox_max_payload_size = 256 * 1024;
int			outbox_delivered_retention = 7 * 24 * 3600;
int			outbox_dead_retention = 30 * 24 * 3600;
int			outbox_dedupe_window = 0;
int			outbox_prune_batch_size = 1000;
bool		outbox_auto_prune = true;
int			outbox_action_retention = 365 * 24 * 3600;
int			outbox_prune_interval = 60000;
int			outbox_unrouted = OUTBOX_UNROUTED_DELIVERED;
int			outbox_unknown_topics = OUTBOX_UNKNOWN_TOPICS_ALLOW;
int			outbox_log_attempts = OUTBOX_LOG_ATTEMPTS_FAILURES;
int			outbox_transport = OUTBOX_TRANSPORT_AUTO;
int			outbox_max_response_capture = 2048;
int			outbox_on_settle_timeout = 10000;
char	   *outbox_blocked_networks = NULL;
char	   *outbox_user_agent = NULL;
char	   *outbox_log_response_headers = NULL;
char	   *outbox_redact_function = NULL;
char	   *outbox_site = NULL;

static const struct config_enum_entry unrouted_options[] = {
	{"delivered", OUTBOX_UNROUTED_DELIVERED, false},
	{"dead", OUTBOX_UNROUTED_DEAD, false},
	{"error", OUTBOX_UNROUTED_ERROR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry unknown_topics_options[] = {
	{"allow", OUTBOX_UNKNOWN_TOPICS_ALLOW, false},
	{"error", OUTBOX_UNKNOWN_TOPICS_ERROR, false},
	{NULL, 0, false}
};

static const struct config_enum_entry log_attempts_options[] = {
	{"failures", OUTBOX_LOG_ATTEMPTS_FAILURES, false},
	{"all", OUTBOX_LOG_ATTEMPTS_ALL, false},
	{"none", OUTBOX_LOG_ATTEMPTS_NONE, false},
	{NULL, 0, false}
};

static const struct config_enum_entry transport_options[] = {
	{"auto", OUTBOX_TRANSPORT_AUTO, false},
	{"curl", OUTBOX_TRANSPORT_CURL, false},
	{NULL, 0, false}
};

static const struct config_enum_entry synchronous_commit_options[] = {
	{"off", SYNCHRONOUS_COMMIT_OFF, false},
	{"local", SYNCHRONOUS_COMMIT_LOCAL_FLUSH, false},
	{"remote_write", SYNCHRONOUS_COMMIT_REMOTE_WRITE, false},
	{"on", SYNCHRONOUS_COMMIT_ON, false},
	{NULL, 0, false}
};

static bool
is_printable_ascii(const char *text)
{
	for (; *text; text++)
	{
		if ((unsigned char) *text < 0x20 || (unsigned char) *text > 0x7e)
			return false;
	}
	return true;
}

/* A user agent goes into every request as it is, so it must not carry a line end. */
static bool
check_user_agent(char **newval, void **extra, GucSource source)
{
	if (is_printable_ascii(*newval))
		return true;
	GUC_check_errdetail("A user agent consists of printable ASCII characters.");
	return false;
}

/* Its name is shown to databases of any encoding. */
static bool
check_site(char **newval, void **extra, GucSource source)
{
	if (is_printable_ascii(*newval) && strlen(*newval) < NAMEDATALEN)
		return true;
	GUC_check_errdetail("A site is named by at most %d printable ASCII characters.", NAMEDATALEN - 1);
	return false;
}

/*
 * What the server's environment says is where the configuration does not: a
 * configuration in the data directory goes along with every copy of it.
 */
static void
define_site(void)
{
	const char *site = getenv("OUTBOX_SITE");

	DefineCustomStringVariable("outbox.site",
							   "The name of the place where this server runs.",
							   "A database sends only from the site that it was set up or adopted at. Empty: not compared.",
							   &outbox_site, site != NULL ? site : "",
							   PGC_SIGHUP, 0, check_site, NULL, NULL);
}

static void
define_server_settings(void)
{
	/* Shared memory is laid out once, so these need the postmaster. */
	if (process_shared_preload_libraries_in_progress)
	{
		DefineCustomIntVariable("outbox.max_databases",
								"Databases of this server that can have an outbox.",
								NULL, &outbox_max_databases, 64, 1, 10000,
								PGC_POSTMASTER, 0, NULL, NULL, NULL);
		DefineCustomIntVariable("outbox.max_stat_handlers",
								"Handlers of this server whose numbers are kept for outbox.stat_handlers.",
								"What is done by others is not counted; outbox.stat_dispatcher says how much that is.",
								&outbox_max_stat_handlers, 1000, 0, 100000,
								PGC_POSTMASTER, 0, NULL, NULL, NULL);
	}

	DefineCustomBoolVariable("outbox.enabled",
							 "Deliver messages.",
							 "When off, messages can be staged and claimed but nothing is sent.",
							 &outbox_enabled, true, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_in_flight",
							"Requests of one dispatcher that may be out at once.",
							"The last tenth of them is for handlers that have none out.", &outbox_max_in_flight, 500, 1, 10000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_memory",
							"Memory of one dispatcher for payloads and requests.",
							"Half of it is for payloads larger than 64 kB.  One that does not fit goes when no other is there.",
							&outbox_max_memory, 64 * 1024, 1024, MAX_KILOBYTES,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.rescan_interval",
							"Time between two looks at every outstanding delivery.",
							"Catches what no doorbell told, such as rows put right by hand.",
							&outbox_rescan_interval, 60000, 100, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.settle_interval",
							"Longest time an answer waits to be settled together with others.",
							NULL, &outbox_settle_interval, 50, 0, 10000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.shutdown_grace",
							"Longest time that a dispatcher which is to end waits for the answers to what it has sent.",
							"What has not been answered by then is sent again later.  A server that stops waits for it.",
							&outbox_shutdown_grace, 2000, 0, 3600 * 1000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.settle_synchronous_commit",
							 "How safe a settlement is before its answer no longer counts as unsettled.",
							 "off and local are as in synchronous_commit; with remote_write and on it counts until a synchronous standby has it, but nothing waits.",
							 &outbox_settle_synchronous_commit,
							 SYNCHRONOUS_COMMIT_LOCAL_FLUSH, synchronous_commit_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.settler",
							 "Write receipts in a process of its own while there are many.",
							 NULL, &outbox_settler, true, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.max_response_capture",
							"Bytes of a failed attempt's response body that are kept.",
							NULL, &outbox_max_response_capture, 2048, 0, 65536,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.on_settle_timeout",
							"Longest time an on_settle function may take.",
							"It is cancelled then and the attempt fails with code on_settle_failed; it may wait for a lock for half of it.",
							&outbox_on_settle_timeout, 10000, 10, 3600 * 1000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.transport",
							 "What speaks HTTP: auto takes the faster one where it can, curl always libcurl transfers.",
							 "Taken up when a dispatcher starts.", &outbox_transport,
							 OUTBOX_TRANSPORT_AUTO, transport_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomStringVariable("outbox.user_agent",
							   "The user-agent header of every request.",
							   NULL, &outbox_user_agent, "outbox/" OUTBOX_SQL_VERSION,
							   PGC_SUSET, 0, check_user_agent, NULL, NULL);
	DefineCustomStringVariable("outbox.blocked_networks",
							   "Networks that no request may go to.",
							   "A comma-separated list of CIDR networks; private stands for every non-public one.",
							   &outbox_blocked_networks, "",
							   PGC_SUSET, 0, outbox_check_blocked_networks,
							   outbox_assign_blocked_networks, NULL);
	DefineCustomStringVariable("outbox.log_response_headers",
							   "Headers of an answer that are kept with a logged attempt.",
							   "A comma-separated list of names. Empty: none.",
							   &outbox_log_response_headers, "",
							   PGC_SUSET, 0, outbox_check_logged_headers,
							   outbox_assign_logged_headers, NULL);
	DefineCustomStringVariable("outbox.redact_function",
							   "A function through which error texts go before they are kept.",
							   "Its schema and name; it takes a text and returns one. Empty: they are kept as they are.",
							   &outbox_redact_function, "",
							   PGC_SUSET, 0, outbox_check_redact_function,
							   outbox_assign_redact_function, NULL);
}

static void
define_database_settings(void)
{
	DefineCustomIntVariable("outbox.max_payload_size",
							"Largest payload that can be staged, as it is sent by itself.",
							"As JSON text, as another text in UTF-8, or in bytes.", &outbox_max_payload_size, 256 * 1024, 1, 256 * 1024 * 1024,
							PGC_SUSET, GUC_UNIT_BYTE, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.unrouted",
							 "What becomes of a message that no handler takes.",
							 "delivered keeps it without a delivery, dead makes it a dead letter, error refuses it.",
							 &outbox_unrouted, OUTBOX_UNROUTED_DELIVERED, unrouted_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.unknown_topics",
							 "What becomes of a message whose topic outbox.create_topic() has not been told of.",
							 "allow stages it like any other, error refuses it.",
							 &outbox_unknown_topics, OUTBOX_UNKNOWN_TOPICS_ALLOW, unknown_topics_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomEnumVariable("outbox.log_attempts",
							 "Which attempts are logged in outbox.attempts.",
							 NULL, &outbox_log_attempts,
							 OUTBOX_LOG_ATTEMPTS_FAILURES, log_attempts_options,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.delivered_retention",
							"Time a message is kept once all its deliveries are settled.",
							NULL, &outbox_delivered_retention, 7 * 24 * 3600, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.dead_retention",
							"Time a message with a dead or cancelled delivery is kept.",
							NULL, &outbox_dead_retention, 30 * 24 * 3600, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.dedupe_window",
							"Time for which a dedupe_key counts, from when its message was staged.",
							"0: as long as the message is kept.", &outbox_dedupe_window, 0, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.prune_batch_size",
							"Messages that outbox.prune() removes in one statement.",
							"The server's own retention removes as many in a transaction.", &outbox_prune_batch_size, 1000, 1, 10000,
							PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.action_retention",
							"Time that what operators have done is kept in outbox.actions.",
							NULL, &outbox_action_retention, 365 * 24 * 3600, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomBoolVariable("outbox.auto_prune",
							 "Remove messages that are past retention.",
							 "When off, nothing is removed but by outbox.prune().",
							 &outbox_auto_prune, true, PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("outbox.prune_interval",
							"Time from one round of retention to the next.",
							NULL, &outbox_prune_interval, 60000, 100, 24 * 3600 * 1000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
}

void
outbox_define_settings(void)
{
	define_site();
	define_server_settings();
	define_database_settings();
	outbox_reserve_setting_prefix("outbox");
}
