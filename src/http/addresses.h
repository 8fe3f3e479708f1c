/*-------------------------------------------------------------------------
 *
 * addresses.h
 *		Addresses that let nobody in, to be passed over for a while.
 *
 * A name may lead to many addresses.  libcurl tries them in turn, the first
 * for half of the time there is for connecting, the next for half of what is
 * left, so that behind a few that do not answer there is no time for another.
 * Those are remembered here: the next connection begins with the others, and
 * comes back to them when none of the others lets it in.
 *
 * What is remembered is bounded in number and in time.  No curl, no sockets.
 * Process: the dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_ADDRESSES_H
#define OUTBOX_HTTP_ADDRESSES_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* An address that was tried last; none if its family is 0. */
typedef struct OutboxTrial
{
	union
	{
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	}			address;
	int64_t		since;			/* in the unit of clock.h */
	bool		pending;		/* it has neither let us in nor refused, as far as we know */
} OutboxTrial;

/* What one connection has tried, of each family the latest; all zero at first. */
typedef struct OutboxTrials
{
	OutboxTrial v4;
	OutboxTrial v6;
} OutboxTrials;

/* Is an address to be passed over while there are others? */
extern bool outbox_address_is_passed_over(const struct sockaddr *address);

/*
 * An address is tried now, whatever was remembered of it: so the one of its
 * family before it has had its time.
 */
extern void outbox_trials_begin(OutboxTrials *trials, const struct sockaddr *address);

/* The end: one of them let us in, or none has so far. */
extern void outbox_trials_end(OutboxTrials *trials, bool connected);

/* Forget everything. */
extern void outbox_addresses_reset(void);

#endif							/* OUTBOX_HTTP_ADDRESSES_H */
