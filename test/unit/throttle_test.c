/*-------------------------------------------------------------------------
 *
 * throttle_test.c
 *		A lane finds the rate of a receiver that refuses what is too much.
 *
 * Receivers that limit in different ways are simulated with a lane that has
 * always more to send.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <stdlib.h>

#include "policy/throttle.h"

#include "tap.h"

#define SECOND INT64CONST(1000000)
#define MAX_OUT 200

typedef enum Kind
{
	BUCKET,						/* tokens that fill up evenly, a second's worth of them */
	WINDOW,						/* so many in each second of the clock */
	FLAKY,						/* one in so many is refused, at random */
	SPACING						/* nothing sooner than an interval after the one before */
} Kind;

static const char *const kinds[] = {"a token bucket", "a fixed window", "flaky", "spacing"};

typedef struct Receiver
{
	Kind		kind;
	double		rate;			/* 0: takes everything */
	double		tokens;
	int64		at;				/* of the last look; the last one taken */
	int64		window;
	int			in_window;
} Receiver;

static bool
receiver_takes(Receiver *r, int64 now)
{
	if (r->rate <= 0)
		return true;
	switch (r->kind)
	{
		case BUCKET:
			r->tokens = Min(r->tokens + (now - r->at) * r->rate / SECOND, r->rate);
			r->at = now;
			if (r->tokens < 1)
				return false;
			r->tokens--;
			return true;
		case WINDOW:
			if (now / SECOND != r->window)
				r->in_window = 0;
			r->window = now / SECOND;
			return ++r->in_window <= r->rate;
		case FLAKY:
			return rand() % (int) r->rate != 0;
		case SPACING:
			if (r->at != 0 && now - r->at < SECOND * 0.999 / r->rate)
				return false;
			r->at = now;
			return true;
	}
	return true;
}

/* A lane that sends as soon as it may, with so many requests out at most. */
typedef struct Lane
{
	OutboxThrottle throttle;
	Receiver	receiver;
	int			concurrency;
	int64		latency;
	int64		sent[MAX_OUT];	/* those out, in the order they were sent */
	bool		takes[MAX_OUT];
	int			first;
	int			nout;
	int			taken;
	int			refused;
} Lane;

static void
answer_one(Lane *lane, int64 now)
{
	int			i = lane->first;

	lane->first = (lane->first + 1) % MAX_OUT;
	lane->nout--;
	if (lane->takes[i])
	{
		outbox_throttle_taken(&lane->throttle, now);
		lane->taken++;
	}
	else
	{
		outbox_throttle_refused(&lane->throttle, lane->sent[i], now);
		lane->refused++;
	}
}

static void
send_one(Lane *lane, int64 now)
{
	int			i = (lane->first + lane->nout++) % MAX_OUT;

	outbox_throttle_take(&lane->throttle, now);
	lane->sent[i] = now;
	lane->takes[i] = receiver_takes(&lane->receiver, now + lane->latency / 2);
}

/* Run until a time; counts start anew. */
static void
run(Lane *lane, int64 from, int64 until)
{
	int64		now = from;

	lane->taken = lane->refused = 0;
	while (now < until)
	{
		int64		next = until;

		while (lane->nout > 0 && lane->sent[lane->first] + lane->latency <= now)
			answer_one(lane, now);
		while (lane->nout < lane->concurrency && outbox_throttle_next(&lane->throttle, now) <= now)
			send_one(lane, now);
		if (lane->nout > 0)
			next = Min(next, lane->sent[lane->first] + lane->latency);
		if (lane->nout < lane->concurrency)
			next = Min(next, outbox_throttle_next(&lane->throttle, now));
		now = Max(next, now + 1);
	}
}

/* From the first request on: it settles at the receiver's rate, and leaves it behind when it is gone. */
static void
test_receiver(Kind kind, double rate, int concurrency, int64 latency)
{
	Lane		lane = {.receiver = {.kind = kind, .rate = rate, .tokens = rate}, .concurrency = concurrency, .latency = latency};
	int64		now = 1000 * SECOND;
	const char *name = kinds[kind];

	run(&lane, now, now + 10 * SECOND);
	ok(lane.refused < rate * 10 / 2 + 4 * concurrency, "%s of %g/s, %d out, %d ms: %d refused in the first ten seconds",
	   name, rate, concurrency, (int) (latency / 1000), lane.refused);
	run(&lane, now + 10 * SECOND, now + 130 * SECOND);
	ok(lane.refused < 0.2 * (lane.taken + lane.refused), "%d of %d refused once settled", lane.refused, lane.taken + lane.refused);
	ok(lane.taken > (kind == SPACING ? 0.5 : 0.8) * 120 * rate, "%d of %d that could have been taken were", lane.taken, (int) (120 * rate));

	lane.receiver.rate = 0;
	now += 130 * SECOND;
	run(&lane, now, now + 15 * SECOND);
	run(&lane, now + 15 * SECOND, now + 16 * SECOND);
	ok(lane.taken >= Min(50 * rate, 0.9 * concurrency * SECOND / latency), "free again: %d in the sixteenth second", lane.taken);
	run(&lane, now + 16 * SECOND, now + 100 * SECOND);
	is_int(lane.throttle.rate, 0, "and nothing is left of it");
}

/* A receiver that takes nothing at all is asked now and then, and found well soon after it is. */
static void
test_down(void)
{
	Lane		lane = {.receiver = {.kind = SPACING, .rate = 1e-9, .at = 1}, .concurrency = 10, .latency = 2000};
	int64		now = 1000 * SECOND;

	run(&lane, now, now + 60 * SECOND);
	is_int(lane.taken, 0, "a receiver that takes nothing");
	run(&lane, now + 60 * SECOND, now + 160 * SECOND);
	is_int(lane.refused, 20, "is asked every five seconds");
	lane.receiver.rate = 0;
	now += 160 * SECOND;
	run(&lane, now, now + 30 * SECOND);
	run(&lane, now + 30 * SECOND, now + 31 * SECOND);
	ok(lane.taken > 100, "when it takes everything again, it gets %d a second half a minute later", lane.taken);
}

/* A receiver that refuses one in so many, however fast it is asked. */
static void
test_flaky(int one_in, double least)
{
	Lane		lane = {.receiver = {.kind = FLAKY, .rate = one_in}, .concurrency = 10, .latency = 2000};
	int64		now = 1000 * SECOND;

	run(&lane, now, now + 120 * SECOND);
	run(&lane, now + 120 * SECOND, now + 180 * SECOND);
	ok(lane.taken > least * 60, "a receiver that refuses one in %d at random gets %d a second", one_in, lane.taken / 60);
}

/* One refusal among many: the rate dips and comes back. */
static void
test_one_refusal(void)
{
	Lane		lane = {.concurrency = 10, .latency = 2000};
	int64		now = 1000 * SECOND;

	ok(outbox_throttle_next(&lane.throttle, now) <= now, "nothing holds back who was never refused");
	run(&lane, now, now + 5 * SECOND);
	ok(!outbox_throttle_refused(&lane.throttle, now + 5 * SECOND - 1, now + 5 * SECOND), "one refusal among many is no reason");
	outbox_throttle_refused(&lane.throttle, now + 5 * SECOND - 1, now + 5 * SECOND);
	ok(outbox_throttle_refused(&lane.throttle, now + 5 * SECOND - 1, now + 5 * SECOND), "three are");
	ok(!outbox_throttle_refused(&lane.throttle, now + 5 * SECOND - 1, now + 5 * SECOND), "another one of the same time is not");
	ok(lane.throttle.rate > 3500 && lane.throttle.rate < 4200, "of 5000 a second %g are left", lane.throttle.rate);
	run(&lane, now + 20 * SECOND, now + 21 * SECOND);
	ok(lane.taken > 4500, "a few seconds later nothing is held back");
	run(&lane, now + 21 * SECOND, now + 66 * SECOND);
	is_int(lane.throttle.rate, 0, "and after a minute it is forgotten");
}

static void
test_first_answer(void)
{
	OutboxThrottle throttle = {0};
	int64		now = 1000 * SECOND;

	outbox_throttle_refused(&throttle, now, now);
	is_int(outbox_throttle_next(&throttle, now) - now, SECOND / 2, "the first answer of all refuses: two a second");
	ok(!outbox_throttle_refused(&throttle, now + 1, now + SECOND / 2), "no second cut within a second");
	ok(outbox_throttle_refused(&throttle, now + 1, now + 3 * SECOND / 2), "but after it");
	is_int(outbox_throttle_next(&throttle, now - 3600 * SECOND) - (now - 3600 * SECOND), SECOND / throttle.rate,
		   "a clock set back costs one interval");
	is_int(outbox_throttle_next(&throttle, now - 3599 * SECOND) - (now - 3600 * SECOND), SECOND / throttle.rate,
		   "which passes");
	for (int i = 1; i <= 61; i++)
		outbox_throttle_taken(&throttle, now + i * SECOND + 3 * SECOND / 2);
	is_int(throttle.rate, 0, "a minute without a refusal ends it");
	outbox_throttle_restore(&throttle, 4, now);
	is_int(outbox_throttle_next(&throttle, now), now, "after a restart the first goes at once");
	outbox_throttle_take(&throttle, now);
	is_int(outbox_throttle_next(&throttle, now), now + SECOND / 4, "and the others at the rate that was known");
	outbox_throttle_restore(&throttle, 0, now);
	is_int(throttle.rate, 0, "or freely");
}

int
main(void)
{
	static const int latencies[] = {2, 100};

	for (int kind = BUCKET; kind <= SPACING; kind++)
	{
		if (kind == FLAKY)
			continue;
		for (int i = 0; i < 2; i++)
		{
			test_receiver(kind, 20, 10, latencies[i] * 1000);
			test_receiver(kind, 20, 50, latencies[i] * 1000);
			test_receiver(kind, 300, 50, latencies[i] * 1000);
			test_receiver(kind, 2, 10, latencies[i] * 1000);
		}
	}
	test_down();
	test_flaky(100, 100);
	test_flaky(20, 5);
	test_one_refusal();
	test_first_answer();
	return tap_done();
}
