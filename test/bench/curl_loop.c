/*-------------------------------------------------------------------------
 *
 * curl_loop.c
 *		The yardstick: a bare libcurl multi loop that posts and nothing else.
 *
 * No database, no receipts: curl_multi_perform and curl_multi_poll, one easy
 * handle for each request in flight, used again as soon as it is done.  Posts
 * the same bodies with the same headers as the dispatcher does.
 *
 *		curl_loop --url URL [--requests N] [--concurrency N] [--body-size N]
 *			[--ca-file FILE] [--http-version 11|20]
 *
 * Prints "requests N failed N seconds S rate R cpu_us U", the last being the
 * microseconds of processor time that a request took.
 *
 *-------------------------------------------------------------------------
 */
#include <curl/curl.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "load.h"

typedef struct Slot
{
	CURL	   *easy;
	struct curl_slist nodes[LOAD_HEADERS];
	LoadRequest request;
} Slot;

static long total = 100000;
static long concurrency = 50;
static size_t body_size = 200;
static const char *url;
static const char *ca_file;
static int	http_version = 11;

static size_t
swallow(char *data, size_t size, size_t n, void *arg)
{
	return size * n;
}

/* Make a slot's next request. */
static void
fill(Slot *slot, long number)
{
	load_next(&slot->request, number, body_size);
	curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) slot->request.body_len);
	curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDS, slot->request.body);
}

static void
set_up(Slot *slot)
{
	load_prepare(&slot->request);
	for (int i = 0; i < LOAD_HEADERS; i++)
	{
		slot->nodes[i].data = (char *) slot->request.headers[i];
		slot->nodes[i].next = i + 1 < LOAD_HEADERS ? &slot->nodes[i + 1] : NULL;
	}
	slot->easy = curl_easy_init();
	curl_easy_setopt(slot->easy, CURLOPT_URL, url);
	curl_easy_setopt(slot->easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(slot->easy, CURLOPT_POST, 1L);
	curl_easy_setopt(slot->easy, CURLOPT_HTTP_VERSION,
					 (long) (http_version == 20 ? CURL_HTTP_VERSION_2TLS : CURL_HTTP_VERSION_1_1));
	if (ca_file != NULL)
		curl_easy_setopt(slot->easy, CURLOPT_CAINFO, ca_file);
	curl_easy_setopt(slot->easy, CURLOPT_WRITEFUNCTION, swallow);
	curl_easy_setopt(slot->easy, CURLOPT_HTTPHEADER, slot->nodes);
	curl_easy_setopt(slot->easy, CURLOPT_TIMEOUT_MS, 30000L);
	curl_easy_setopt(slot->easy, CURLOPT_PRIVATE, slot);
}

static void
read_options(int argc, char **argv)
{
	static const struct option options[] = {
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
			case 'u':
				url = optarg;
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
				ca_file = optarg;
				break;
			case 'v':
				http_version = atoi(optarg);
				break;
			default:
				exit(2);
		}
	}
	if (url == NULL || total < 1 || concurrency < 1 || body_size > LOAD_MAX_BODY)
	{
		fprintf(stderr, "usage: curl_loop --url URL [--requests N] [--concurrency N] [--body-size N] "
				"[--ca-file FILE] [--http-version 11|20]\n");
		exit(2);
	}
}

int
main(int argc, char **argv)
{
	CURLM	   *multi;
	Slot	   *slots;
	long		started = 0,
				finished = 0,
				failed = 0;
	double		begin;

	read_options(argc, argv);
	if (concurrency > total)
		concurrency = total;
	curl_global_init(CURL_GLOBAL_DEFAULT);
	multi = curl_multi_init();
	slots = calloc(concurrency, sizeof(Slot));
	curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, concurrency);

	begin = load_seconds();
	for (long i = 0; i < concurrency; i++)
	{
		set_up(&slots[i]);
		fill(&slots[i], started++);
		curl_multi_add_handle(multi, slots[i].easy);
	}
	while (finished < total)
	{
		CURLMsg    *message;
		int			running,
					left;
		bool		any = false;

		curl_multi_perform(multi, &running);
		while ((message = curl_multi_info_read(multi, &left)) != NULL)
		{
			CURL	   *easy = message->easy_handle;
			CURLcode	result = message->data.result;
			long		status = 0;
			Slot	   *slot;

			any = true;
			curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **) &slot);
			curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
			finished++;
			if (result != CURLE_OK || status / 100 != 2)
				failed++;
			curl_multi_remove_handle(multi, easy);
			if (started < total)
			{
				fill(slot, started++);
				curl_multi_add_handle(multi, easy);
			}
		}
		if (!any)
			curl_multi_poll(multi, NULL, 0, 1000, NULL);
	}
	load_report(finished, failed, load_seconds() - begin);
	return failed > 0;
}
