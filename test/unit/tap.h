/*-------------------------------------------------------------------------
 *
 * tap.h
 *		The few lines that a C unit test needs to speak TAP.
 *
 * A unit test is test/unit/NAME_test.c, one program.  The objects it links
 * with are its prerequisites in test/unit/unit.mk.  It ends with
 * "return tap_done();".
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TAP_H
#define OUTBOX_TAP_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int	tap_ran = 0;
static int	tap_failed = 0;

/* One test point; the description is a printf format. Returns ok. */
static int	tap_ok(int ok, const char *file, int line, const char *format,...)
			__attribute__((format(printf, 4, 5)));

static int
tap_ok(int ok, const char *file, int line, const char *format,...)
{
	va_list		args;

	tap_ran++;
	printf("%sok %d - ", ok ? "" : "not ", tap_ran);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	if (!ok)
	{
		tap_failed++;
		printf("# failed at %s line %d\n", file, line);
	}
	return ok;
}

/* Print the plan; the program's exit status. */
static int
tap_done(void)
{
	printf("1..%d\n", tap_ran);
	return tap_failed == 0 && tap_ran > 0 ? 0 : 1;
}

/* A test point that cannot be tried here, and why. */
#define skip(reason) printf("ok %d # SKIP %s\n", ++tap_ran, reason)

#define ok(condition, ...) tap_ok((condition) ? 1 : 0, __FILE__, __LINE__, __VA_ARGS__)

#define is_int(got, expected, ...) \
	do { \
		long long	got_ = (long long) (got); \
		long long	expected_ = (long long) (expected); \
		if (!tap_ok(got_ == expected_, __FILE__, __LINE__, __VA_ARGS__)) \
			printf("# got %lld, expected %lld\n", got_, expected_); \
	} while (0)

#define is_str(got, expected, ...) \
	do { \
		const char *got_ = (got); \
		const char *expected_ = (expected); \
		if (!tap_ok(got_ && strcmp(got_, expected_) == 0, __FILE__, __LINE__, __VA_ARGS__)) \
			printf("# got \"%s\", expected \"%s\"\n", got_ ? got_ : "(null)", expected_); \
	} while (0)

#endif							/* OUTBOX_TAP_H */
