/*-------------------------------------------------------------------------
 *
 * watermark_test.c
 *		The position of claims, where no two sessions can be made to meet.
 *
 * See consume/watermark.h.  Sessions are played one after the other, with
 * each other's steps in between.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "consume/watermark.h"
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

static OutboxQueuePosition
key_of(int n)
{
	OutboxQueuePosition key = {n, {{0}}};

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
	outbox_watermark_start(&ref, version, 0, max_strays, false, claim);
}

static void
finish(const OutboxClaimStart *claim, int32 version, int reached, const OutboxUnresolved *unresolved, int n)
{
	OutboxQueuePosition key = key_of(reached);

	outbox_watermark_finish(&ref, version, claim, &key, unresolved, n);
}

/* Would a claim of this version meet the key: as a stray, or from the position on? */
static bool
is_met(int n, int32 version)
{
	static OutboxClaimStart claim;
	OutboxQueuePosition key = key_of(n);

	outbox_watermark_start(&ref, version, 0, OUTBOX_STRAYS, true, &claim);
	for (int i = 0; i < claim.nstrays; i++)
	{
		if (outbox_position_cmp(&claim.strays[i], &key) == 0)
			return true;
	}
	return outbox_position_cmp(&key, &claim.from) >= 0;
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
	OutboxQueuePosition late = key_of(50);

	reset();
	raise_to(100, 0);
	ok(!is_met(50, 0) && is_met(100, 0), "claims start at the position");
	outbox_watermark_report(&ref, &late);
	ok(is_met(50, 0), "what is reported behind it is a stray");

	reset();
	start(&claim, 0, 0);
	outbox_watermark_report(&ref, &late);
	finish(&claim, 0, 100, NULL, 0);
	ok(is_met(50, 0) && !is_met(99, 0), "and so is what was reported while the position was being raised");
}

/* No stray can be noted any more: the position goes back, and a claim under way leaves it there. */
static void
test_full(void)
{
	static OutboxClaimStart holder;
	static OutboxClaimStart raiser;
	OutboxQueuePosition taken = key_of(10);
	OutboxUnresolved unresolved = {taken, OUTBOX_ANY_VERSION};

	reset();
	raise_to(1000, 0);
	outbox_watermark_report(&ref, &taken);
	start(&holder, 0, 1);
	ok(holder.nstrays == 1, "a stray is taken off");
	for (int i = 0; i < OUTBOX_STRAYS; i++)
	{
		OutboxQueuePosition key = key_of(100 + i);

		outbox_watermark_report(&ref, &key);
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
	OutboxQueuePosition taken = key_of(10);
	OutboxUnresolved unresolved = {taken, 9};

	reset();
	raise_to(1000, 9);
	outbox_watermark_report(&ref, &taken);
	start(&raiser, 9, 0);
	for (int version = 1; version <= OUTBOX_POSITIONS; version++)
		start(&older, version, version == 1 ? 1 : 0);
	/* The one of version 1 took the stray, and knows of nobody to put it back for. */
	outbox_watermark_finish(&ref, 1, &older, NULL, &unresolved, 1);
	finish(&raiser, 9, 2000, NULL, 0);
	ok(is_met(10, 9), "a position that had given way begins anew");
}

static void
test_strays_are_ordered(void)
{
	OutboxClaimStart start;
	OutboxQueuePosition key = {0};
	OutboxQueuePosition position = {1000, {{0}}};

	reset();
	outbox_watermark_start(&ref, 0, 1, 0, false, &start);
	outbox_watermark_finish(&ref, 0, &start, &position, NULL, 0);
	for (int i = 0; i < 50; i++)
	{
		key.due_at = (i * 37) % 50;
		outbox_watermark_report(&ref, &key);
		outbox_watermark_report(&ref, &key);
	}
	outbox_watermark_start(&ref, 0, 1, 20, false, &start);
	is_int(start.nstrays, 20, "as many strays as asked for");
	ok(start.more_strays, "and there are more");
	is_int(start.strays[0].due_at, 0, "the earliest first");
	is_int(start.strays[19].due_at, 19, "each once");
	outbox_watermark_start(&ref, 0, 1, 100, true, &start);
	is_int(start.nstrays, 30, "the rest can be looked at");
	outbox_watermark_start(&ref, 0, 1, 100, false, &start);
	is_int(start.nstrays, 30, "and is still there");
	is_int(start.from.due_at, 1000, "the position has not moved");
}

static void
test_overflow(void)
{
	OutboxClaimStart start;
	OutboxQueuePosition key = {0};
	OutboxQueuePosition position = {1000, {{0}}};

	reset();
	outbox_watermark_start(&ref, 0, 1, 0, false, &start);
	outbox_watermark_finish(&ref, 0, &start, &position, NULL, 0);
	for (int i = 0; i < OUTBOX_STRAYS; i++)
	{
		key.due_at = 500 + i;
		outbox_watermark_report(&ref, &key);
	}
	key.due_at = 700;
	outbox_watermark_report(&ref, &key);
	outbox_watermark_start(&ref, 0, 1, 0, false, &start);
	is_int(start.from.due_at, 700, "a stray for which there is no room takes the position back to it");

	/* More reports than are remembered: the claim that was under way does not raise the position. */
	for (int i = 0; i <= OUTBOX_RECENT; i++)
	{
		key.due_at = 5000 + i;
		outbox_watermark_report(&ref, &key);
	}
	outbox_watermark_finish(&ref, 0, &start, &position, NULL, 0);
	outbox_watermark_start(&ref, 0, 1, 0, false, &start);
	is_int(start.from.due_at, 700, "too many reports leave the position where it was");
	outbox_watermark_finish(&ref, 0, &start, &position, NULL, 0);
	outbox_watermark_start(&ref, 0, 1, 0, false, &start);
	is_int(start.from.due_at, 1000, "the next claim raises it");
	outbox_watermark_reset(&ref);
	outbox_watermark_start(&ref, 0, 1, 0, false, &start);
	ok(start.from.due_at == DT_NOBEGIN, "a reset takes it to the beginning");
}

static void
test_versions(void)
{
	OutboxClaimStart start;
	OutboxQueuePosition key = {100, {{0}}};
	OutboxQueuePosition position = {1000, {{0}}};
	OutboxUnresolved unresolved = {key, 2};

	reset();
	outbox_watermark_start(&ref, 1, 1, 0, false, &start);
	outbox_watermark_finish(&ref, 1, &start, &position, &unresolved, 1);
	outbox_watermark_start(&ref, 1, 1, 10, false, &start);
	is_int(start.nstrays, 0, "what only newer consumers may claim is no stray while none has gone past it");
	outbox_watermark_start(&ref, 2, 1, 10, false, &start);
	ok(start.from.due_at == DT_NOBEGIN, "a newer consumer has a position of its own");
	outbox_watermark_finish(&ref, 2, &start, &position, NULL, 0);
	ok(outbox_watermark_is_behind(&ref, &key, 2), "now it lies behind");
	outbox_watermark_start(&ref, 1, 1, 10, false, &start);
	outbox_watermark_finish(&ref, 1, &start, NULL, &unresolved, 1);
	outbox_watermark_start(&ref, 2, 1, 10, false, &start);
	is_int(start.nstrays, 1, "and is a stray");

	for (int version = 10; version < 10 + OUTBOX_POSITIONS; version++)
		outbox_watermark_start(&ref, version, 1, 0, false, &start);
	outbox_watermark_start(&ref, 2, 1, 0, false, &start);
	ok(start.from.due_at == DT_NOBEGIN, "the position used least recently gives way");
}

static void
test_floors(void)
{
	OutboxClaimStart start;
	pg_uuid_t	high = {{9}};
	pg_uuid_t	found;
	OutboxQueuePosition key = {1, {{5}}};

	reset();
	outbox_watermark_start(&ref, 0, 1, 0, false, &start);
	ok(!outbox_key_floor_get(&ref, "k", 1, &found), "no floor yet");
	outbox_key_floor_raise(&ref, &start, "k", 1, &high);
	ok(outbox_key_floor_get(&ref, "k", 1, &found) && found.data[0] == 9, "a floor");
	ok(!outbox_key_floor_get(&ref, "kk", 2, &found), "of this key only");
	outbox_watermark_report(&ref, &key);
	ok(outbox_key_floor_get(&ref, "k", 1, &found) && found.data[0] == 5, "a smaller id that commits takes it down");
	outbox_key_floor_raise(&ref, &start, "k", 1, &high);
	ok(outbox_key_floor_get(&ref, "k", 1, &found) && found.data[0] == 5, "and a claim that started before does not raise it");
	outbox_watermark_start(&ref, 0, 1, 0, false, &start);
	outbox_key_floor_raise(&ref, &start, "k", 1, &high);
	ok(outbox_key_floor_get(&ref, "k", 1, &found) && found.data[0] == 9, "but one that started afterwards does");
	outbox_watermark_reset(&ref);
	ok(outbox_key_floor_get(&ref, "k", 1, &found) && found.data[0] == 0, "a reset takes it down");
}

int
main(void)
{
	test_positions();
	test_full();
	test_given_way();
	test_strays_are_ordered();
	test_overflow();
	test_versions();
	test_floors();
	return tap_done();
}
