/*-------------------------------------------------------------------------
 *
 * transport_loop.c
 *		A transport on its own: the same load as curl_loop, through the
 *		interface that the dispatcher uses, without a database.
 *
 *		transport_loop --transport curl|fast --url URL [--requests N]
 *			[--concurrency N] [--body-size N] [--ca-file FILE] [--http-version 11|20]
 *
 * Prints "requests N failed N seconds S rate R cpu_us U", as curl_loop does.
 *
 *-------------------------------------------------------------------------
 */
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>

#include "http/factory.h"
#include "load.h"

typedef struct Slot
{
	HttpExchange exchange;
	LoadRequest request;
} Slot;

static long total = 100000;
static long concurrency = 50;
static size_t body_size = 200;
static HttpTarget target = {
	.timeout_ms = 30000,.connect_timeout_ms = 5000,.http_version = 11
};
static const HttpTransport *transport;

static void
submit(Slot *slot, long number)
{
	load_next(&slot->request, number, body_size);
	slot->exchange.body_len = slot->request.body_len;
	while (!transport->submit(&slot->exchange))
		transport->drive();
}

static void
read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{"transport", required_argument, NULL, 't'},
		{"url", required_argument, NULL, 'u'},
		{"requests", required_argument, NULL, 'n'},
		{"concurrency", required_argument, NULL, 'c'},
		{"body-size", required_argument, NULL, 's'},
		{"ca-file", required_argument, NULL, 'a'},
		{"http-version", required_argument, NULL, 'v'},
		{0}
	};
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (c)
		{
			case 't':
				transport = outbox_http_find_transport(optarg);
				break;
			case 'u':
				target.url = optarg;
				break;
			case 'n':
				total = atol(optarg);
				break;
			case 'c':
				concurrency = atol(optarg);
				break;
			case 's':
				body_size = atol(optarg);
				break;
			case 'a':
				target.tls_ca_file = optarg;
				break;
			case 'v':
				target.http_version = atoi(optarg);
				break;
			default:
				exit(2);
		}
	}
	if (transport == NULL || target.url == NULL || total < 1 || concurrency < 1 || body_size > LOAD_MAX_BODY)
	{
		fprintf(stderr, "usage: transport_loop --transport curl|fast --url URL [--requests N] "
				"[--concurrency N] [--body-size N] [--ca-file FILE] [--http-version 11|20]\n");
		exit(2);
	}
}

int
main(int argc, char **argv)
{
	HttpTransportOptions options = {0};
	Slot	   *slots;
	const char *problem;
	long		started = 0,
				finished = 0,
				failed = 0;
	double		begin;

	read_options(argc, argv);
	if (concurrency > total)
		concurrency = total;
	options.max_in_flight = target.max_connections = concurrency;
	problem = transport->startup(&options);
	if (problem != NULL)
	{
		fprintf(stderr, "transport_loop: %s\n", problem);
		return 1;
	}
	slots = calloc(concurrency, sizeof(Slot));

	begin = load_seconds();
	for (long i = 0; i < concurrency; i++)
	{
		HttpExchange *exchange = &slots[i].exchange;

		load_prepare(&slots[i].request);
		exchange->target = &target;
		exchange->headers = slots[i].request.headers;
		exchange->nheaders = LOAD_HEADERS;
		exchange->body = slots[i].request.body;
		exchange->capture_limit = 4096;
		submit(&slots[i], started++);
	}
	while (finished < total)
	{
		HttpExchange *exchange;

		transport->drive();
		while ((exchange = transport->next_done()) != NULL)
		{
			finished++;
			if (exchange->failure != HTTP_ANSWERED || exchange->status / 100 != 2)
			{
				if (failed++ == 0)
					fprintf(stderr, "failure %d, status %d: %s\n", exchange->failure, exchange->status, exchange->error);
			}
			transport->release(exchange);
			if (started < total)
				submit((Slot *) exchange, started++);
		}
		if (finished < total)
		{
			struct pollfd fd = {.fd = transport->fd(),.events = POLLIN};

			poll(&fd, 1, (int) transport->timeout());
		}
	}
	load_report(finished, failed, load_seconds() - begin);
	transport->forget(&target);
	transport->shutdown();
	return failed > 0;
}
