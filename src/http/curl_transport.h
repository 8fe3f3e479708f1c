/*-------------------------------------------------------------------------
 *
 * curl_transport.h
 *		The parts of the transport "curl" that its neighbour calls, which
 *		hands it what it does not carry itself and drives both at once.
 *
 * Process: the dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_CURL_TRANSPORT_H
#define OUTBOX_HTTP_CURL_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

/* When something has to be done even if every socket stays quiet, -1: never. */
extern int64_t outbox_curl_next_event(void);

/* The parts of drive() besides the sockets, which the poller takes care of. */
extern void outbox_curl_run_timer(int64_t now);
extern void outbox_curl_judge_timeouts(int64_t now);

/* The parts of catch_up(): no timeout is judged while they are held. */
extern void outbox_curl_hold_timeouts(bool hold);

#endif							/* OUTBOX_HTTP_CURL_TRANSPORT_H */
