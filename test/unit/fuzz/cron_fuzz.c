/*-------------------------------------------------------------------------
 *
 * cron_fuzz.c
 *		A libFuzzer harness for cron expressions.
 *
 * The first eight bytes make a time and a zone that changes its clocks now
 * and then, the rest is the expression.  Built and run by "make fuzz-cron"
 * with address and undefined-behaviour sanitizers; beyond what those catch, it
 * traps when cron.h does not keep what it promises.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "schedule/cron.h"

#define PARAMETERS 8

#define must(condition) \
	do { \
		if (!(condition)) \
			__builtin_trap(); \
	} while (0)

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The clocks go back and forth, each time after so many seconds, by so much. */
typedef struct Changing
{
	int64		period;
	int32		shift;
} Changing;

static void
look(const void *arg, int64 at, int32 *offset, int64 *until)
{
	const Changing *changing = arg;
	int64		n = at / changing->period - (at % changing->period < 0);

	*offset = n % 2 != 0 ? changing->shift : 0;
	*until = (n + 1) * changing->period;
}

static void
follow(const OutboxCron *cron, const OutboxZone *zone, int64 at)
{
	for (int i = 0; i < 20; i++)
	{
		int64		next = outbox_cron_next(cron, zone, at);

		must(next > at);
		if (next == OUTBOX_CRON_NEVER)
			return;
		/* Asked from anywhere before, it is the same one. */
		must(outbox_cron_next(cron, zone, at + (next - at) / 2) == next || (next - at) / 2 == 0);
		must(outbox_cron_next(cron, zone, next - 1) == next);
		at = next;
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char	   *text;
	OutboxCron	cron;
	OutboxCronError error = {-1, ""};

	if (size < PARAMETERS)
		return 0;
	text = malloc(size - PARAMETERS + 1);
	memcpy(text, data + PARAMETERS, size - PARAMETERS);
	text[size - PARAMETERS] = '\0';
	if (outbox_cron_parse(text, &cron, &error))
	{
		Changing	changing = {86400 * (30 + data[0]), (data[1] - 128) * 300};
		OutboxZone	zone = {look, &changing};

		follow(&cron, &zone, ((int64) data[2] - 50) * 86400 * 366 + data[3] * 86400 + data[4] * 256 + data[5]);
	}
	else
		must(error.position >= 0 && error.position <= strlen(text) && error.reason[0] != '\0');
	free(text);
	return 0;
}
