/*-------------------------------------------------------------------------
 *
 * low_water_test.c
 *		The position of claims, where no two sessions can be made to meet.
 *
 * See consume/low_water.h.  Sessions are played one after the other, with
 * each other's steps in between.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "consume/low_water.h"
#include "tap.h"

static OutboxPullState state;
static const OutboxPullRef ref = {1, 1, &state};

/* One process, so nobody to lock out. */
bool
outbox_pull_state_lock(const OutboxPullRef *r)
{
	return r->state != NULL;
}

void
outbox_pull_state_unlock(const OutboxPullRef *r)
{
}

static OutboxKey
key_of(int n)
{
	OutboxKey	key = {n, {{0}}};

	key.id.data[0] = n >> 8;
	key.id.data[1] = n;
	return key;
}

static void
reset(void)
{
	memset(&state, 0, sizeof(state));
	for (int i = 0; i < OUTBOX_KEY_FLOORS; i++)
		state.floors[i].len = -1;
}

static void
start(OutboxClaimStart *claim, int32 version, int max_strays)
{
	outbox_low_water_start(&ref, version, 0, max_strays, false, claim);
}

static void
finish(const OutboxClaimStart *claim, int32 version, int reached, const OutboxUnresolved *unresolved, int n)
{
	OutboxKey	key = key_of(reached);

	outbox_low_water_finish(&ref, version, claim, &key, unresolved, n);
}

/* Would a claim of this version meet the key: as a stray, or from the position on? */
static bool
is_met(int n, int32 version)
{
	static OutboxClaimStart claim;
	OutboxKey	key = key_of(n);

	outbox_low_water_start(&ref, version, 0, OUTBOX_STRAYS, true, &claim);
	for (int i = 0; i < claim.nstrays; i++)
	{
		if (outbox_key_cmp(&claim.strays[i], &key) == 0)
			return true;
	}
	return outbox_key_cmp(&key, &claim.from) >= 0;
}

/* Raise the position of a version. */
static void
raise_to(int n, int32 version)
{
	static OutboxClaimStart claim;

	start(&claim, version, 0);
	finish(&claim, version, n, NULL, 0);
}

static void
test_positions(void)
{
	static OutboxClaimStart claim;
	OutboxKey	late = key_of(50);

	reset();
	raise_to(100, 0);
	ok(!is_met(50, 0) && is_met(100, 0), "claims start at the position");
	outbox_low_water_report(&ref, &late);
	ok(is_met(50, 0), "what is reported behind it is a stray");

	reset();
	start(&claim, 0, 0);
	outbox_low_water_report(&ref, &late);
	finish(&claim, 0, 100, NULL, 0);
	ok(is_met(50, 0) && !is_met(99, 0), "and so is what was reported while the position was being raised");
}

/* No stray can be noted any more: the position goes back, and a claim under way leaves it there. */
static void
test_full(void)
{
	static OutboxClaimStart holder;
	static OutboxClaimStart raiser;
	OutboxKey	taken = key_of(10);
	OutboxUnresolved unresolved = {taken, OUTBOX_ANY_VERSION};

	reset();
	raise_to(1000, 0);
	outbox_low_water_report(&ref, &taken);
	start(&holder, 0, 1);
	ok(holder.nstrays == 1, "a stray is taken off");
	for (int i = 0; i < OUTBOX_STRAYS; i++)
	{
		OutboxKey	key = key_of(100 + i);

		outbox_low_water_report(&ref, &key);
	}
	start(&raiser, 0, 0);
	finish(&holder, 0, 1000, &unresolved, 1);
	ok(is_met(10, 0), "put back where strays are full, it is met from the position on");
	finish(&raiser, 0, 1100, NULL, 0);
	ok(is_met(10, 0), "and a claim that had started before does not raise the position past it");
}

/* The position of a version gave way to others while it was being raised. */
static void
test_given_way(void)
{
	static OutboxClaimStart raiser;
	static OutboxClaimStart older;
	OutboxKey	taken = key_of(10);
	OutboxUnresolved unresolved = {taken, 9};

	reset();
	raise_to(1000, 9);
	outbox_low_water_report(&ref, &taken);
	start(&raiser, 9, 0);
	for (int version = 1; version <= OUTBOX_POSITIONS; version++)
		start(&older, version, version == 1 ? 1 : 0);
	/* The one of version 1 took the stray, and knows of nobody to put it back for. */
	outbox_low_water_finish(&ref, 1, &older, NULL, &unresolved, 1);
	finish(&raiser, 9, 2000, NULL, 0);
	ok(is_met(10, 9), "a position that had given way begins anew");
}

int
main(void)
{
	test_positions();
	test_full();
	test_given_way();
	return tap_done();
}
