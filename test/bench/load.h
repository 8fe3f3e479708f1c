/*-------------------------------------------------------------------------
 *
 * load.h
 *		The requests that the benchmarks of HTTP send: the headers the
 *		dispatcher sends, and a JSON body of a given size.
 *
 * The header block of a request is written once; what changes from request
 * to request is patched in place, so that making one costs next to nothing
 * beside sending it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_BENCH_LOAD_H
#define OUTBOX_BENCH_LOAD_H

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define LOAD_HEADERS 8
#define LOAD_MAX_BODY (1024 * 1024)

typedef struct LoadRequest
{
	char		id[64];
	char		key[64];
	const char *headers[LOAD_HEADERS];
	char		body[LOAD_MAX_BODY];
	size_t		body_len;
} LoadRequest;

/* Write the parts of a request that do not change. */
static inline void
load_prepare(LoadRequest *request)
{
	strcpy(request->id, "webhook-id: 01900000-0000-7000-8000-000000000000");
	strcpy(request->key, "idempotency-key: 01900000-0000-7000-8000-000000000000");
	request->headers[0] = "content-type: application/json";
	request->headers[1] = request->id;
	request->headers[2] = "webhook-timestamp: 1700000000";
	request->headers[3] = request->key;
	request->headers[4] = "outbox-topic: bench.message.sent";
	request->headers[5] = "outbox-handler: bench";
	request->headers[6] = "outbox-attempt: 1";
	request->headers[7] = "user-agent: outbox/1.0";
}

/* Number a request and give it its body. */
static inline void
load_next(LoadRequest *request, long number, size_t body_size)
{
	char		digits[16];
	int			head;

	snprintf(digits, sizeof(digits), "%012lx", (unsigned long) number & 0xffffffffffffUL);
	memcpy(request->id + strlen(request->id) - 12, digits, 12);
	memcpy(request->key + strlen(request->key) - 12, digits, 12);
	if (request->body_len == body_size)
		return;
	head = snprintf(request->body, sizeof(request->body), "{\"padding\":\"");
	request->body_len = body_size > (size_t) head + 2 ? body_size : (size_t) head + 2;
	memset(request->body + head, 'x', request->body_len - head - 2);
	memcpy(request->body + request->body_len - 2, "\"}", 2);
}

static inline double
load_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* The processor time that this process has used, the kernel's for it included. */
static inline double
load_cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static inline void
load_report(long requests, long failed, double seconds)
{
	printf("requests %ld failed %ld seconds %.3f rate %.0f cpu_us %.1f\n",
		   requests, failed, seconds, requests / seconds, load_cpu_seconds() * 1e6 / requests);
}

#endif							/* OUTBOX_BENCH_LOAD_H */
