/*-------------------------------------------------------------------------
 *
 * clock.h
 *		The one clock of this library: CLOCK_MONOTONIC in microseconds.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_CLOCK_H
#define OUTBOX_HTTP_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t
outbox_clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* The earlier of two times, of which -1 is never. */
static inline int64_t
outbox_clock_earlier(int64_t a, int64_t b)
{
	if (a < 0)
		return b;
	return b >= 0 && b < a ? b : a;
}

/* Milliseconds from now, rounded up; 0 when it has passed, -1 for -1. */
static inline long
outbox_clock_ms_until(int64_t at)
{
	int64_t		left;

	if (at < 0)
		return -1;
	left = at - outbox_clock_us();
	return left <= 0 ? 0 : (long) ((left + 999) / 1000);
}

#endif							/* OUTBOX_HTTP_CLOCK_H */
