/*-------------------------------------------------------------------------
 *
 * watermark.c
 *		Where claims on a pull handler start reading.  See watermark.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "utils/timestamp.h"

#include "consume/watermark.h"

static const OutboxQueuePosition beginning = {DT_NOBEGIN, {{0}}};

/*
 * Strays
 */

/* The first stray that is not below key. */
static int
stray_index(const OutboxPullState *state, const OutboxQueuePosition *key)
{
	int			lo = 0;
	int			hi = state->nstrays;

	while (lo < hi)
	{
		int			mid = (lo + hi) / 2;

		if (outbox_position_cmp(&state->strays[mid], key) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* No room for a stray: all positions that have passed it go back to it. */
static void
go_back(OutboxPullState *state, const OutboxQueuePosition *key)
{
	for (int i = 0; i < OUTBOX_POSITIONS; i++)
	{
		OutboxPosition *position = &state->positions[i];

		if (position->used && outbox_position_cmp(key, &position->key) < 0)
			position->key = *key;
	}
}

static void
add_stray(OutboxPullState *state, const OutboxQueuePosition *key)
{
	int			at = stray_index(state, key);

	if (at < state->nstrays && outbox_position_cmp(&state->strays[at], key) == 0)
		return;
	if (state->nstrays == OUTBOX_STRAYS)
	{
		go_back(state, key);
		return;
	}
	memmove(&state->strays[at + 1], &state->strays[at], sizeof(OutboxQueuePosition) * (state->nstrays - at));
	state->strays[at] = *key;
	state->nstrays++;
}

static int
take_strays(OutboxPullState *state, int max, bool peek, OutboxQueuePosition *out)
{
	int			n = Min(state->nstrays, max);

	memcpy(out, state->strays, sizeof(OutboxQueuePosition) * n);
	if (!peek && n > 0)
	{
		state->nstrays -= n;
		memmove(state->strays, &state->strays[n], sizeof(OutboxQueuePosition) * state->nstrays);
	}
	return n;
}

/*
 * Positions
 */

static OutboxPosition *
position_of(OutboxPullState *state, int32 version)
{
	OutboxPosition *choice = &state->positions[0];

	for (int i = 0; i < OUTBOX_POSITIONS; i++)
	{
		OutboxPosition *position = &state->positions[i];

		if (position->used && position->version == version)
		{
			position->stamp = ++state->clock;
			return position;
		}
		if (choice->used && (!position->used || position->stamp < choice->stamp))
			choice = position;
	}
	choice->used = true;
	choice->version = version;
	choice->stamp = ++state->clock;
	choice->key = beginning;
	return choice;
}

/* Has a consumer that may claim such a row gone past it? */
static bool
is_behind(const OutboxPullState *state, const OutboxQueuePosition *key, int32 min_version)
{
	for (int i = 0; i < OUTBOX_POSITIONS; i++)
	{
		const OutboxPosition *position = &state->positions[i];

		if (position->used && position->version >= min_version && outbox_position_cmp(key, &position->key) < 0)
			return true;
	}
	return false;
}

void
outbox_watermark_start(const OutboxPullRef *ref, int32 version, TimestampTz now,
					   int max_strays, bool peek, OutboxClaimStart *start)
{
	OutboxPullState *state = ref->state;

	start->tracked = false;
	start->from = beginning;
	start->nstrays = 0;
	start->more_strays = false;
	if (!outbox_pull_state_lock(ref))
		return;

	start->tracked = true;
	start->incarnation = state->incarnation;
	start->nrecent = state->nrecent;
	start->from = position_of(state, version)->key;
	start->more_strays = state->nstrays > max_strays;
	start->nstrays = take_strays(state, Min(max_strays, OUTBOX_STRAYS), peek, start->strays);
	state->last_used = now;
	outbox_pull_state_unlock(ref);
}

/*
 * How far the position may rise: to reached, with strays made of what was
 * reported since start and lies below, or up to the lowest of several.
 */
static OutboxQueuePosition
heed_recent(OutboxPullState *state, const OutboxClaimStart *start, const OutboxQueuePosition *reached)
{
	OutboxQueuePosition limit = *reached;

	if (state->nrecent - start->nrecent > OUTBOX_RECENT)
		return beginning;
	for (uint64 i = start->nrecent; i < state->nrecent; i++)
	{
		const OutboxReport *report = &state->recent[i % OUTBOX_RECENT];

		if (outbox_position_cmp(&report->key, &limit) >= 0)
			continue;
		if (report->several || state->nstrays == OUTBOX_STRAYS)
			limit = report->key;
		else
			add_stray(state, &report->key);
	}
	return limit;
}

void
outbox_watermark_finish(const OutboxPullRef *ref, int32 version,
						const OutboxClaimStart *start, const OutboxQueuePosition *reached,
						const OutboxUnresolved *unresolved, int nunresolved)
{
	OutboxPullState *state = ref->state;

	if (!start->tracked || !outbox_pull_state_lock(ref))
		return;
	if (state->incarnation == start->incarnation)
	{
		OutboxPosition *position = position_of(state, version);

		/* One that has gone back since the start did so for something that this claim may not have met. */
		if (reached != NULL && outbox_position_cmp(&position->key, &start->from) >= 0 &&
			outbox_position_cmp(reached, &position->key) > 0)
		{
			OutboxQueuePosition limit = heed_recent(state, start, reached);

			if (outbox_position_cmp(&limit, &position->key) > 0)
				position->key = limit;
		}
		/* Strays that find no room take the position back down, so they come after it. */
		for (int i = 0; i < nunresolved; i++)
		{
			if (is_behind(state, &unresolved[i].key, unresolved[i].min_version))
				add_stray(state, &unresolved[i].key);
		}
	}
	outbox_pull_state_unlock(ref);
}

bool
outbox_watermark_is_behind(const OutboxPullRef *ref, const OutboxQueuePosition *key, int32 min_version)
{
	bool		behind;

	if (!outbox_pull_state_lock(ref))
		return false;
	behind = is_behind(ref->state, key, min_version);
	outbox_pull_state_unlock(ref);
	return behind;
}

/*
 * Reports
 */

static void
note_recent(OutboxPullState *state, const OutboxQueuePosition *key, const pg_uuid_t *id, bool several)
{
	OutboxReport *report = &state->recent[state->nrecent % OUTBOX_RECENT];

	report->key = *key;
	report->id = *id;
	report->several = several;
	state->nrecent++;
}

static void
lower_floors(OutboxPullState *state, const pg_uuid_t *id)
{
	for (int i = 0; i < OUTBOX_KEY_FLOORS; i++)
	{
		OutboxKeyFloor *floor = &state->floors[i];

		if (floor->len >= 0 && memcmp(id->data, floor->id.data, UUID_LEN) < 0)
			floor->id = *id;
	}
}

void
outbox_watermark_report(const OutboxPullRef *ref, const OutboxQueuePosition *key)
{
	OutboxPullState *state = ref->state;

	if (!outbox_pull_state_lock(ref))
		return;
	lower_floors(state, &key->id);
	note_recent(state, key, &key->id, false);
	if (is_behind(state, key, OUTBOX_ANY_VERSION))
		add_stray(state, key);
	outbox_pull_state_unlock(ref);
}

void
outbox_watermark_report_several(const OutboxPullRef *ref, const OutboxQueuePosition *lowest,
								const pg_uuid_t *lowest_id)
{
	OutboxPullState *state = ref->state;

	if (!outbox_pull_state_lock(ref))
		return;
	lower_floors(state, lowest_id);
	note_recent(state, lowest, lowest_id, true);
	go_back(state, lowest);
	outbox_pull_state_unlock(ref);
}

void
outbox_watermark_revisit(const OutboxPullRef *ref, const pg_uuid_t *id)
{
	OutboxPullState *state = ref->state;
	OutboxQueuePosition key = {DT_NOBEGIN, *id};

	if (!outbox_pull_state_lock(ref))
		return;
	lower_floors(state, id);
	note_recent(state, &key, id, false);
	add_stray(state, &key);
	outbox_pull_state_unlock(ref);
}

void
outbox_watermark_reset(const OutboxPullRef *ref)
{
	outbox_watermark_report_several(ref, &beginning, &beginning.id);
}

/*
 * Claimants
 */

bool
outbox_claimant_add(const OutboxPullRef *ref, TransactionId xid)
{
	OutboxPullState *state = ref->state;
	bool		added = false;

	if (!outbox_pull_state_lock(ref))
		return false;
	if (state->nclaimants < OUTBOX_CLAIMANTS)
	{
		state->claimants[state->nclaimants++] = xid;
		added = true;
	}
	outbox_pull_state_unlock(ref);
	return added;
}

void
outbox_claimant_remove(const OutboxPullRef *ref, TransactionId xid)
{
	OutboxPullState *state = ref->state;

	if (!outbox_pull_state_lock(ref))
		return;
	for (int i = 0; i < state->nclaimants; i++)
	{
		if (TransactionIdEquals(state->claimants[i], xid))
		{
			state->claimants[i] = state->claimants[--state->nclaimants];
			break;
		}
	}
	outbox_pull_state_unlock(ref);
}

bool
outbox_claimant_is(const OutboxPullRef *ref, TransactionId xid)
{
	OutboxPullState *state = ref->state;
	bool		is = false;

	if (!outbox_pull_state_lock(ref))
		return false;
	for (int i = 0; i < state->nclaimants && !is; i++)
		is = TransactionIdEquals(state->claimants[i], xid);
	outbox_pull_state_unlock(ref);
	return is;
}

/*
 * Floors of message keys
 */

static OutboxKeyFloor *
find_floor(OutboxPullState *state, const char *key, int len)
{
	for (int i = 0; i < OUTBOX_KEY_FLOORS; i++)
	{
		OutboxKeyFloor *floor = &state->floors[i];

		if (floor->len == len && memcmp(floor->key, key, len) == 0)
			return floor;
	}
	return NULL;
}

static OutboxKeyFloor *
make_floor(OutboxPullState *state, const char *key, int len)
{
	OutboxKeyFloor *choice = &state->floors[0];

	for (int i = 0; i < OUTBOX_KEY_FLOORS && choice->len >= 0; i++)
	{
		OutboxKeyFloor *floor = &state->floors[i];

		if (floor->len < 0 || floor->stamp < choice->stamp)
			choice = floor;
	}
	choice->len = len;
	memcpy(choice->key, key, len);
	memset(&choice->id, 0, sizeof(pg_uuid_t));
	return choice;
}

bool
outbox_key_floor_get(const OutboxPullRef *ref, const char *key, int len, pg_uuid_t *id)
{
	OutboxKeyFloor *floor;

	if (len > OUTBOX_FLOOR_KEY_LEN || !outbox_pull_state_lock(ref))
		return false;
	floor = find_floor(ref->state, key, len);
	if (floor != NULL)
	{
		floor->stamp = ++ref->state->clock;
		*id = floor->id;
	}
	outbox_pull_state_unlock(ref);
	return floor != NULL;
}

/* The lowest id reported since start, if it is below id.  False if too much was reported. */
static bool
bound_by_recent(const OutboxPullState *state, const OutboxClaimStart *start, pg_uuid_t *id)
{
	if (state->nrecent - start->nrecent > OUTBOX_RECENT)
		return false;
	for (uint64 i = start->nrecent; i < state->nrecent; i++)
	{
		const pg_uuid_t *recent = &state->recent[i % OUTBOX_RECENT].id;

		if (memcmp(recent->data, id->data, UUID_LEN) < 0)
			*id = *recent;
	}
	return true;
}

void
outbox_key_floor_raise(const OutboxPullRef *ref, const OutboxClaimStart *start,
					   const char *key, int len, const pg_uuid_t *id)
{
	OutboxPullState *state = ref->state;
	pg_uuid_t	bound = *id;

	if (!start->tracked || len > OUTBOX_FLOOR_KEY_LEN || !outbox_pull_state_lock(ref))
		return;
	if (state->incarnation == start->incarnation && bound_by_recent(state, start, &bound))
	{
		OutboxKeyFloor *floor = find_floor(state, key, len);

		if (floor == NULL)
			floor = make_floor(state, key, len);
		floor->stamp = ++state->clock;
		if (memcmp(bound.data, floor->id.data, UUID_LEN) > 0)
			floor->id = bound;
	}
	outbox_pull_state_unlock(ref);
}
