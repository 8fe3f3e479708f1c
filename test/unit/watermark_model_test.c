/*-------------------------------------------------------------------------
 *
 * watermark_model_test.c
 *		Whatever the order of events, no delivery is lost behind the position.
 *
 * A model of sessions over the real watermark.c: producers that insert,
 * commit and report; consumers that start, take a snapshot, read entry by
 * entry, finish, and commit or roll back, some of which choose rows first and
 * take them when they have finished; an operator who holds rows.  Each
 * of these steps happens by itself, in a random order, many times over.  At
 * the end a consumer must find everything that committed.
 *
 * So that this is known to be able to fail, the same is done with one of the
 * rules of watermark.h broken at a time, and then something must be lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "utils/timestamp.h"

#include "consume/watermark.h"

#include "tap.h"

#define MAX_ROWS 700
#define CONSUMERS 3
#define PRODUCERS 3
#define NEVER INT_MAX

/* Rules that can be broken. */
typedef enum Fault
{
	NO_FAULT,
	SNAPSHOT_BEFORE_START,		/* step 2 before step 1 */
	NO_REPORT_OF_COMMITS,
	NO_REPORT_OF_ABORTS,
	HELD_BY_ANYBODY_IS_PASSED,	/* not only rows held by claimants */
	CHANGED_SINCE_IS_PASSED,	/* a row that changed after the snapshot counts as dealt with */
	NO_FINISH_OF_STRAYS,		/* unresolved ones are dropped */
	UNRESOLVED_LATER,			/* what a turn passed and did not choose is put back with what comes after the turn */
	CHOSEN_ARE_NOT_OWED,		/* an error after the choice reports only what was taken */
	FAULTS
} Fault;

typedef struct Row
{
	OutboxQueuePosition key;
	int32		min_version;
	int			visible;		/* commits before that snapshot number do not see it */
	int			leased;			/* from that snapshot number on it is leased */
	int			touched;		/* last change by an operator, which changes nothing for claims */
	int			holder;			/* consumer; -1: none */
	bool		operator_holds;
} Row;

typedef enum Phase
{
	IDLE, STARTED, READING, OFFERING, HOLDING, ENDED
} Phase;

typedef struct Consumer
{
	Phase		phase;
	int32		version;
	TimestampTz now;
	int			wanted;
	int			snapshot;
	int			next_stray;
	int			next_row;
	OutboxQueuePosition reached;
	OutboxClaimStart start;
	OutboxUnresolved unresolved[OUTBOX_STRAYS];
	int			nunresolved;
	int			ntaken;
	int			taken[MAX_ROWS];
	bool		chooses;		/* takes turns: rows of the index are chosen first, and taken behind the position */
	int			nchosen;
	int			next_chosen;
	int			chosen[OUTBOX_STRAYS];
	bool		commits;
	bool		fails;			/* at some time after its turn */
	TransactionId xid;
} Consumer;

typedef struct Producer
{
	int			first;			/* its rows, in the order it inserted them */
	int			n;
	bool		committed;
	bool		in_transaction;
	int			rows[MAX_ROWS];
} Producer;

static OutboxPullState state;
static const OutboxPullRef ref = {1, 1, &state};

static Row	rows[MAX_ROWS];		/* in the order of the index: keys ascend with insertion */
static int	nrows;
static int	max_rows;
static int	commits;			/* the number of the newest snapshot */
static TimestampTz clock_now;
static TransactionId next_xid;
static Consumer consumers[CONSUMERS];
static Producer producers[PRODUCERS];
static Fault fault;
static int	most_wanted;
static uint64 random_state;

/* The module under test locks through these; there is one thread here. */
bool
outbox_pull_state_lock(const OutboxPullRef *r)
{
	return r->state != NULL;
}

void
outbox_pull_state_unlock(const OutboxPullRef *r)
{
}

static int
dice(int n)
{
	random_state = random_state * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (int) ((random_state >> 33) % n);
}

static void
reset_world(uint64 seed)
{
	memset(&state, 0, sizeof(state));
	for (int i = 0; i < OUTBOX_KEY_FLOORS; i++)
		state.floors[i].len = -1;
	memset(consumers, 0, sizeof(consumers));
	memset(producers, 0, sizeof(producers));
	nrows = 0;
	commits = 0;
	clock_now = 1000;
	next_xid = FirstNormalTransactionId;
	random_state = seed * 2 + 1;
	for (int i = 0; i < 10; i++)
		dice(2);
}

/*
 * Producers: insert some, commit, then report.
 */

static void
insert_row(Producer *producer)
{
	Row		   *row = &rows[nrows];

	memset(row, 0, sizeof(Row));
	/* Several may share a time, and then it is the id that counts. */
	clock_now += dice(2);
	row->key.due_at = clock_now;
	row->key.id.data[14] = nrows / 256;
	row->key.id.data[15] = nrows % 256;
	row->min_version = dice(5) == 0 ? 1 : OUTBOX_ANY_VERSION;
	row->visible = NEVER;
	row->leased = NEVER;
	row->holder = -1;
	producer->rows[producer->n++] = nrows++;
}

static void
report_commit(Producer *producer)
{
	if (fault == NO_REPORT_OF_COMMITS)
		return;
	if (producer->n > 5)
		outbox_watermark_report_several(&ref, &rows[producer->rows[0]].key, &rows[producer->rows[0]].key.id);
	else
	{
		for (int i = 0; i < producer->n; i++)
			outbox_watermark_report(&ref, &rows[producer->rows[i]].key);
	}
}

static void
step_producer(Producer *producer)
{
	if (producer->committed)
	{
		report_commit(producer);
		producer->committed = false;
		producer->n = 0;
		return;
	}
	if (nrows < max_rows && dice(2) == 0)
	{
		insert_row(producer);
		return;
	}
	if (producer->n == 0)
		return;
	if (dice(8) == 0)
	{
		/* Rolled back: its rows are never seen. */
		producer->n = 0;
		return;
	}
	commits++;
	for (int i = 0; i < producer->n; i++)
		rows[producer->rows[i]].visible = commits;
	producer->committed = true;
}

/*
 * Consumers
 */

static bool
sees_outstanding(const Consumer *c, const Row *row)
{
	return row->visible <= c->snapshot && row->leased > c->snapshot;
}

static void
note_unresolved(Consumer *c, const Row *row)
{
	if (fault == NO_FINISH_OF_STRAYS)
		return;
	c->unresolved[c->nunresolved].key = row->key;
	c->unresolved[c->nunresolved].min_version = row->min_version;
	c->nunresolved++;
}

static void
take_row(Consumer *c, int number)
{
	Row		   *row = &rows[number];

	if (c->ntaken == 0)
	{
		c->xid = next_xid++;
		outbox_claimant_add(&ref, c->xid);
	}
	row->holder = c - consumers;
	c->taken[c->ntaken++] = number;
}

/* What claims do with a row that the snapshot shows as outstanding. */
static void
visit_row(Consumer *c, int number)
{
	Row		   *row = &rows[number];

	if (row->operator_holds)
	{
		if (fault != HELD_BY_ANYBODY_IS_PASSED)
			note_unresolved(c, row);
	}
	else if (row->holder >= 0 && row->holder != c - consumers)
	{
		if (!outbox_claimant_is(&ref, consumers[row->holder].xid))
			note_unresolved(c, row);
	}
	else if (row->leased <= commits || row->touched > c->snapshot)
	{
		if (fault != CHANGED_SINCE_IS_PASSED)
			note_unresolved(c, row);
	}
	else if (row->holder < 0)
		take_row(c, number);
}

static bool
has_room(const Consumer *c)
{
	return c->nunresolved + c->nchosen - c->next_chosen < OUTBOX_STRAYS;
}

/* A row of the index in a turn: what is held can be seen, what has changed since the snapshot cannot. */
static void
choose_row(Consumer *c, int number)
{
	const Row  *row = &rows[number];

	if (row->operator_holds || row->holder >= 0)
		visit_row(c, number);
	else
		c->chosen[c->nchosen++] = number;
}

static void
visit_stray(Consumer *c, const OutboxQueuePosition *key)
{
	for (int i = 0; i < nrows; i++)
	{
		if (outbox_position_cmp(&rows[i].key, key) != 0 || !sees_outstanding(c, &rows[i]))
			continue;
		if (c->ntaken >= c->wanted || rows[i].min_version > c->version)
			note_unresolved(c, &rows[i]);
		else
			visit_row(c, i);
		return;
	}
}

/* One entry of the index.  False at the end of what is due, or of what is wanted. */
static bool
read_entry(Consumer *c)
{
	Row		   *row;

	while (c->next_row < nrows && outbox_position_cmp(&rows[c->next_row].key, &c->start.from) < 0)
		c->next_row++;
	if (c->next_row >= nrows || rows[c->next_row].key.due_at > c->now)
	{
		c->reached.due_at = c->now;
		memset(&c->reached.id, 0, sizeof(pg_uuid_t));
		return false;
	}
	if (c->ntaken + c->nchosen >= c->wanted || !has_room(c))
		return false;
	row = &rows[c->next_row];
	if (sees_outstanding(c, row) && row->min_version <= c->version)
	{
		if (c->chooses)
			choose_row(c, c->next_row);
		else
			visit_row(c, c->next_row);
	}
	/* Everything below has been dealt with, this one as well. */
	c->reached = row->key;
	c->reached.id.data[15]++;
	c->next_row++;
	return true;
}

static void
prepare_claim(Consumer *c, int32 version, bool commits_at_end)
{
	c->version = version;
	c->now = clock_now;
	c->wanted = 1 + dice(most_wanted);
	c->nunresolved = 0;
	c->ntaken = 0;
	c->fails = false;
	c->chooses = dice(2) == 0;
	c->nchosen = 0;
	c->next_chosen = 0;
	c->next_stray = 0;
	c->next_row = 0;
	c->commits = commits_at_end;
}

static void
do_start(Consumer *c)
{
	outbox_watermark_start(&ref, c->version, c->now, c->wanted, false, &c->start);
	c->reached = c->start.from;
}

static void
start_claim(Consumer *c)
{
	prepare_claim(c, dice(2), dice(3) > 0);
	c->fails = dice(5) == 0;
	if (fault == SNAPSHOT_BEFORE_START)
		c->snapshot = commits;
	else
		do_start(c);
	c->phase = STARTED;
}

static void
finish_start(Consumer *c)
{
	if (fault == SNAPSHOT_BEFORE_START)
		do_start(c);
	else
		c->snapshot = commits;
	c->phase = READING;
}

static void
read_on(Consumer *c)
{
	if (c->next_stray < c->start.nstrays)
	{
		visit_stray(c, &c->start.strays[c->next_stray++]);
		return;
	}
	if (read_entry(c))
		return;
	if (c->chooses)
	{
		outbox_watermark_finish(&ref, c->version, &c->start, &c->reached, c->unresolved,
								fault == UNRESOLVED_LATER ? 0 : c->nunresolved);
		if (fault != UNRESOLVED_LATER)
			c->nunresolved = 0;
		c->phase = OFFERING;
		return;
	}
	outbox_watermark_finish(&ref, c->version, &c->start, &c->reached, c->unresolved, c->nunresolved);
	c->phase = HOLDING;
}

/* The turn is over. */
static void
offer_next(Consumer *c)
{
	if (c->fails && dice(2) == 0)
	{
		c->commits = false;
		c->phase = HOLDING;
		return;
	}
	if (c->next_chosen < c->nchosen)
	{
		visit_row(c, c->chosen[c->next_chosen++]);
		return;
	}
	outbox_watermark_finish(&ref, c->version, &c->start, NULL, c->unresolved, c->nunresolved);
	c->phase = HOLDING;
}

/* The transaction ends: first for everybody to see, then in a step of its own it reports. */
static void
end_transaction(Consumer *c)
{
	if (c->commits && c->ntaken > 0)
		commits++;
	for (int i = 0; i < c->ntaken; i++)
	{
		rows[c->taken[i]].holder = -1;
		if (c->commits)
			rows[c->taken[i]].leased = commits;
	}
	c->phase = ENDED;
}

static void
report_end(Consumer *c)
{
	if (!c->commits && fault != NO_REPORT_OF_ABORTS)
	{
		for (int i = 0; i < c->ntaken; i++)
			outbox_watermark_report(&ref, &rows[c->taken[i]].key);
		for (int i = 0; i < c->nchosen && fault != CHOSEN_ARE_NOT_OWED; i++)
			outbox_watermark_report(&ref, &rows[c->chosen[i]].key);
		/* Strays that were taken off go back as well. */
		for (int i = 0; i < c->start.nstrays; i++)
			outbox_watermark_report(&ref, &c->start.strays[i]);
	}
	if (c->ntaken > 0)
		outbox_claimant_remove(&ref, c->xid);
	c->phase = IDLE;
}

static void
step_consumer(Consumer *c)
{
	switch (c->phase)
	{
		case IDLE:
			start_claim(c);
			break;
		case STARTED:
			finish_start(c);
			break;
		case READING:
			read_on(c);
			break;
		case OFFERING:
			offer_next(c);
			break;
		case HOLDING:
			end_transaction(c);
			break;
		case ENDED:
			report_end(c);
			break;
	}
}

/* An operator locks rows, touches them, and lets them go; nobody reports that. */
static void
step_operator(void)
{
	Row		   *row;

	if (nrows == 0)
		return;
	row = &rows[dice(nrows)];
	if (row->visible == NEVER || row->holder >= 0)
		return;
	if (row->operator_holds && dice(2) == 0)
		row->touched = ++commits;
	row->operator_holds = !row->operator_holds;
}

static bool
somebody_is_busy(void)
{
	for (int i = 0; i < CONSUMERS; i++)
	{
		if (consumers[i].phase != IDLE)
			return true;
	}
	for (int i = 0; i < PRODUCERS; i++)
	{
		if (producers[i].n > 0)
			return true;
	}
	return false;
}

static void
finish_everybody(void)
{
	while (somebody_is_busy())
	{
		for (int i = 0; i < CONSUMERS; i++)
		{
			if (consumers[i].phase != IDLE)
				step_consumer(&consumers[i]);
		}
		for (int i = 0; i < PRODUCERS; i++)
		{
			if (producers[i].n > 0)
				step_producer(&producers[i]);
		}
	}
	for (int i = 0; i < nrows; i++)
		rows[i].operator_holds = false;
}

/* A consumer of the newest version claims until nothing comes; how many it never found. */
static int
count_lost(void)
{
	int			lost = 0;

	for (int empty = 0; empty < 3;)
	{
		Consumer   *c = &consumers[0];

		/* Nobody else is there, so no order of steps matters any more. */
		prepare_claim(c, 1, true);
		do_start(c);
		c->snapshot = commits;
		c->phase = READING;
		while (c->phase != IDLE)
			step_consumer(c);
		empty = c->ntaken == 0 && c->start.nstrays == 0 ? empty + 1 : 0;
	}
	for (int i = 0; i < nrows; i++)
	{
		if (rows[i].visible != NEVER && rows[i].leased == NEVER)
			lost++;
	}
	return lost;
}

/* One history; returns how many deliveries were lost. */
static int
run_history(uint64 seed, int steps)
{
	reset_world(seed);
	for (int i = 0; i < steps; i++)
	{
		int			who = dice(CONSUMERS + PRODUCERS + 1);

		if (who < CONSUMERS)
			step_consumer(&consumers[who]);
		else if (who < CONSUMERS + PRODUCERS)
			step_producer(&producers[who - CONSUMERS]);
		else if (dice(3) == 0)
			step_operator();
	}
	finish_everybody();
	return count_lost();
}

/* In how many histories something was lost. */
static int
histories_with_losses(Fault broken, int histories, int steps, int rows_at_most, int wanted_at_most)
{
	int			bad = 0;

	fault = broken;
	max_rows = rows_at_most;
	most_wanted = wanted_at_most;
	for (int i = 0; i < histories; i++)
	{
		if (run_history(i, steps) > 0)
		{
			if (broken == NO_FAULT && bad == 0)
				printf("# lost in history %d of %d steps\n", i, steps);
			bad++;
		}
	}
	return bad;
}

static const char *const fault_names[FAULTS] = {
	[SNAPSHOT_BEFORE_START] = "the snapshot is taken first",
	[NO_REPORT_OF_COMMITS] = "commits do not report",
	[NO_REPORT_OF_ABORTS] = "aborts do not report",
	[HELD_BY_ANYBODY_IS_PASSED] = "rows that an operator holds are passed",
	[CHANGED_SINCE_IS_PASSED] = "rows that changed since the snapshot are passed",
	[NO_FINISH_OF_STRAYS] = "unresolved rows are not put back",
	[UNRESOLVED_LATER] = "what a turn leaves unresolved is put back long after it",
	[CHOSEN_ARE_NOT_OWED] = "a claim that fails after its turn does not report what it chose"
};

int
main(void)
{
	is_int(histories_with_losses(NO_FAULT, 60000, 150, 12, 3), 0, "nothing is lost in 60000 short histories");
	is_int(histories_with_losses(NO_FAULT, 10000, 600, 60, 10), 0, "nor in 10000 longer ones");
	is_int(histories_with_losses(NO_FAULT, 4000, 6000, MAX_ROWS, 200), 0, "nor in 4000 in which there is no room for all that is reported");
	for (Fault broken = NO_FAULT + 1; broken < FAULTS; broken++)
	{
		int			bad = histories_with_losses(broken, 20000, 150, 12, 3);

		ok(bad > 0, "something is lost when %s (%d of 20000)", fault_names[broken], bad);
	}
	return tap_done();
}
