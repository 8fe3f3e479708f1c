/*-------------------------------------------------------------------------
 *
 * http1_fuzz.c
 *		A libFuzzer harness for the parser of answers.
 *
 * Built and run by "make fuzz-http1" with address and undefined-behaviour
 * sanitizers.
 *
 * The first bytes of an input say how the rest is cut.  Beyond what the
 * sanitizers notice, the parser must say the same of every cut, and must stop
 * where it says it did.
 *
 *-------------------------------------------------------------------------
 */
#include "../http1_record.h"

#include <stdint.h>

#define CUTS 4

typedef struct Cuts
{
	const uint8_t *sizes;
	int			next;
} Cuts;

static size_t
piece_from_input(void *arg)
{
	Cuts	   *cuts = arg;

	return cuts->sizes[cuts->next++ % CUTS];
}

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static Record whole;
	static Record pieces;
	static Record again;
	Cuts		cuts = {data, 0};
	const char *input = (const char *) data + CUTS;

	if (size < CUTS)
		return 0;
	size -= CUTS;
	record_run(&whole, input, size, piece_all, NULL);
	record_run(&pieces, input, size, piece_from_input, &cuts);
	if (!record_same(&whole, &pieces))
		abort();

	/* A complete answer is complete without what follows it. */
	if (whole.result == HTTP1_DONE && whole.used < size)
	{
		record_run(&again, input, whole.used, piece_one, NULL);
		if (!record_same(&whole, &again))
			abort();
	}
	return 0;
}
