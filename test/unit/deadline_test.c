/*
 * Unit test of the heap of deadlines: whatever is set, moved and cleared, the
 * first one is the earliest.
 */
#include "http/deadline.h"
#include "tap.h"

#define N 300

static OutboxDeadlines all;
static OutboxDeadline entries[N];

static uint32_t
next_random(void)
{
	static uint32_t state = 12345;

	state = state * 1664525 + 1013904223;
	return state >> 8;
}

/* Every entry is where it says it is, and none is earlier than the one above. */
static bool
is_heap(void)
{
	for (int i = 1; i <= all.count; i++)
		if (all.heap[i]->place != i || (i > 1 && all.heap[i / 2]->at > all.heap[i]->at))
			return false;
	return true;
}

static const OutboxDeadline *
earliest(void)
{
	const OutboxDeadline *first = NULL;

	for (int i = 0; i < N; i++)
		if (entries[i].place > 0 && (first == NULL || entries[i].at < first->at))
			first = &entries[i];
	return first;
}

static bool
first_is_earliest(void)
{
	const OutboxDeadline *expected = earliest();
	const OutboxDeadline *first = outbox_deadlines_first(&all);

	return expected == NULL ? first == NULL : first != NULL && first->at == expected->at;
}

int
main(void)
{
	int			wrong = 0;
	int			set = 0;
	int64_t		last = -1;

	ok(outbox_deadlines_first(&all) == NULL, "nothing is first in an empty heap");
	for (int i = 0; i < 50000; i++)
	{
		OutboxDeadline *entry = &entries[next_random() % N];

		if (next_random() % 3 == 0)
			outbox_deadline_clear(&all, entry);
		else if (outbox_deadlines_reserve(&all))
			outbox_deadline_set(&all, entry, next_random() % 1000);
		wrong += !is_heap() || !first_is_earliest();
	}
	is_int(wrong, 0, "the first is the earliest, after 50000 changes");

	for (int i = 0; i < N; i++)
		set += entries[i].place > 0;
	is_int(all.count, set, "as many are in as were set");
	for (wrong = 0; all.count > 0; set--)
	{
		OutboxDeadline *first = outbox_deadlines_first(&all);

		wrong += first->at < last;
		last = first->at;
		outbox_deadline_clear(&all, first);
		wrong += first->place != 0;
	}
	ok(wrong == 0 && set == 0, "they come out in order");
	outbox_deadlines_free(&all);
	ok(outbox_deadlines_first(&all) == NULL && outbox_deadlines_reserve(&all), "a freed heap can be used again");
	outbox_deadlines_free(&all);
	return tap_done();
}
