/*-------------------------------------------------------------------------
 *
 * guc.h
 *		The settings, as C sees them.
 *
 * Promises: outbox_define_settings() is called once per process from
 * _PG_init; the variables are only ever written by the GUC machinery.
 * Process: any may read them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_GUC_H
#define OUTBOX_GUC_H

#include "postgres.h"

typedef enum OutboxUnrouted
{
	OUTBOX_UNROUTED_DELIVERED,
	OUTBOX_UNROUTED_DEAD,
	OUTBOX_UNROUTED_ERROR
} OutboxUnrouted;

typedef enum OutboxUnknownTopics
{
	OUTBOX_UNKNOWN_TOPICS_ALLOW,
	OUTBOX_UNKNOWN_TOPICS_ERROR
} OutboxUnknownTopics;

typedef enum OutboxLogAttempts
{
	OUTBOX_LOG_ATTEMPTS_FAILURES,
	OUTBOX_LOG_ATTEMPTS_ALL,
	OUTBOX_LOG_ATTEMPTS_NONE
} OutboxLogAttempts;

typedef enum OutboxTransportChoice
{
	OUTBOX_TRANSPORT_AUTO,
	OUTBOX_TRANSPORT_CURL
} OutboxTransportChoice;

extern bool outbox_enabled;
extern bool outbox_settler;
extern int	outbox_max_databases;
extern int	outbox_max_stat_handlers;
extern int	outbox_max_in_flight;
extern int	outbox_max_memory;	/* kB */
extern int	outbox_rescan_interval; /* ms */
extern int	outbox_settle_interval; /* ms */
extern int	outbox_shutdown_grace;	/* ms */
extern int	outbox_settle_synchronous_commit;
extern int	outbox_max_payload_size;	/* bytes */
extern int	outbox_delivered_retention; /* s */
extern int	outbox_dead_retention;	/* s */
extern int	outbox_prune_batch_size;
extern bool outbox_auto_prune;
extern int	outbox_action_retention;	/* s */
extern int	outbox_prune_interval;	/* ms */
extern int	outbox_dedupe_window;	/* s; 0: as long as their messages are kept */
extern int	outbox_unrouted;
extern int	outbox_unknown_topics;
extern int	outbox_log_attempts;
extern int	outbox_transport;
extern int	outbox_max_response_capture;	/* bytes */
extern int	outbox_on_settle_timeout;	/* ms */
extern char *outbox_blocked_networks;
extern char *outbox_user_agent;
extern char *outbox_log_response_headers;
extern char *outbox_redact_function;
extern char *outbox_site;		/* "": has no name */

/* Define every outbox.* setting and reserve the prefix.  Raises on a wrong value in the configuration. */
extern void outbox_define_settings(void);

#endif							/* OUTBOX_GUC_H */
