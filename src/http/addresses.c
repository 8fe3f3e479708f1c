/*-------------------------------------------------------------------------
 *
 * addresses.c
 *		Addresses that let nobody in; see addresses.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/addresses.h"

#include <string.h>

#include "http/clock.h"

/* So many are remembered, the oldest gives way. */
#define MOST_SILENT 256

/* One that has neither let us in nor refused for so long is silent. */
#define SILENT_AFTER_US 100000

/* Passed over so long. */
#define PASSED_OVER_US (600 * INT64_C(1000000))

/* The silent ones, a ring in which the latest overwrites the oldest. */
static OutboxTrial silent[MOST_SILENT];
static int	next_silent;
static int	nsilent;

static bool
same_address(const struct sockaddr *a, const struct sockaddr *b)
{
	const struct sockaddr_in *a4 = (const struct sockaddr_in *) a,
			   *b4 = (const struct sockaddr_in *) b;
	const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *) a,
			   *b6 = (const struct sockaddr_in6 *) b;

	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return a4->sin_port == b4->sin_port && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return a->sa_family == AF_INET6 && a6->sin6_port == b6->sin6_port &&
		a6->sin6_scope_id == b6->sin6_scope_id &&
		memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
}

/* What is remembered of an address, or NULL. */
static OutboxTrial *
find_silent(const struct sockaddr *address)
{
	for (int i = 0; i < nsilent; i++)
		if (same_address(&silent[i].address.any, address))
			return &silent[i];
	return NULL;
}

bool
outbox_address_is_passed_over(const struct sockaddr *address)
{
	const OutboxTrial *found = find_silent(address);

	return found != NULL && outbox_clock_us() - found->since < PASSED_OVER_US;
}

/* The time of a trial is over: remember its address if that was in vain. */
static void
end_trial(OutboxTrial *trial, int64_t now)
{
	if (trial->pending && now - trial->since >= SILENT_AFTER_US)
	{
		OutboxTrial *place = find_silent(&trial->address.any);

		if (place == NULL)
		{
			place = &silent[next_silent];
			next_silent = (next_silent + 1) % MOST_SILENT;
			if (nsilent < MOST_SILENT)
				nsilent++;
		}
		*place = *trial;
		place->since = now;
	}
	trial->pending = false;
}

void
outbox_trials_begin(OutboxTrials *trials, const struct sockaddr *address)
{
	OutboxTrial *trial = address->sa_family == AF_INET ? &trials->v4 : &trials->v6;
	OutboxTrial *found;
	int64_t		now = outbox_clock_us();

	if (address->sa_family != AF_INET && address->sa_family != AF_INET6)
		return;
	found = find_silent(address);
	if (found != NULL)
		found->address.any.sa_family = AF_UNSPEC;
	end_trial(trial, now);
	memcpy(&trial->address, address, address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	trial->since = now;
	trial->pending = true;
}

void
outbox_trials_end(OutboxTrials *trials, bool connected)
{
	int64_t		now = outbox_clock_us();

	/* Of two families that raced, the one that lost was slower, which is no crime. */
	if (connected)
		trials->v4.pending = trials->v6.pending = false;
	end_trial(&trials->v4, now);
	end_trial(&trials->v6, now);
}

void
outbox_addresses_reset(void)
{
	memset(silent, 0, sizeof(silent));
	next_silent = nsilent = 0;
}
