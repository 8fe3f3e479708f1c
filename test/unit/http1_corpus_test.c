/*
 * The corpus of answers over real sockets: through both transports, over TCP
 * and TLS, in one piece and byte by byte.  All have to say of each answer what
 * the corpus says.
 */
#include <curl/curl.h>

#include "tls_wire.h"
#include "transport_harness.h"
#include "http1_corpus.h"

static RawAnswer answers[2 * NCASES];
static char answer_names[2 * NCASES][16];
static Identity identity;

static void
name_answers(void)
{
	for (size_t i = 0; i < 2 * NCASES; i++)
	{
		bool		dribbles = i >= NCASES;

		snprintf(answer_names[i], sizeof(answer_names[i]), "%zu%s", i % NCASES, dribbles ? "-dribbled" : "");
		answers[i] = (RawAnswer)
		{
			answer_names[i], cases[i % NCASES].input, cases[i % NCASES].len, true, dribbles
		};
	}
	raw_answers = answers;
	nraw_answers = 2 * NCASES;
}

static bool
is_as_expected(const HttpExchange *exchange, const Case *c)
{
	if (c->result == HTTP1_BAD)
		return exchange->failure == (c->len == 0 ? HTTP_FAILED_CONNECT : HTTP_FAILED_BODY);
	return exchange->failure == HTTP_ANSWERED && exchange->status == c->status &&
		exchange->response_total == exchange->response_len && exchange->response_len >= strlen(c->body) &&
		memcmp(exchange->response_len > 0 ? exchange->response : "", c->body, strlen(c->body)) == 0 &&
		strcmp(exchange->retry_after, c->retry_after) == 0;
}

static void
check(const char *origin, size_t answer)
{
	const Case *c = &cases[answer % NCASES];
	Call		call;
	char		url[128];

	/* Since 8.18 libcurl unfolds header lines before anybody else sees them. */
	if (c->unfolds && !is_fast() && curl_version_info(CURLVERSION_NOW)->version_num >= 0x081200)
		return;
	snprintf(url, sizeof(url), "%s/raw/%s", origin, answer_names[answer]);
	set_up_url(&call, url);
	call.target.tls_ca_file = identity.certificate_file;
	perform(&call);
	if (!ok(is_as_expected(&call.exchange, c), "%s, %.5s: %s, %s", transport->name, origin, c->name,
			answer < NCASES ? "at once" : "byte by byte"))
		printf("# failure %d, status %d, %llu bytes \"%.*s\", retry-after \"%s\", %s\n", call.exchange.failure,
			   call.exchange.status, (unsigned long long) call.exchange.response_total,
			   (int) call.exchange.response_len, call.exchange.response, call.exchange.retry_after, call.exchange.error);
	finish(&call);
}

int
main(void)
{
	static const char *const names[] = {"curl", "fast"};
	HttpTransportOptions options = {.max_in_flight = 10};
	char		origins[2][64];

	signal(SIGPIPE, SIG_IGN);
	name_answers();
	make_folder();
	make_identity(&identity, "localhost", "DNS:localhost", -3600, 3600, NULL);
	snprintf(origins[0], sizeof(origins[0]), "http://localhost:%d", hostile_listen(NULL));
	snprintf(origins[1], sizeof(origins[1]), "https://localhost:%d", tls_listen(tls_context(&identity), false));
	for (int t = 0; t < 2; t++)
	{
		start_transport(names[t], &options);
		for (int o = 0; o < 2; o++)
			for (size_t i = 0; i < 2 * NCASES; i++)
				check(origins[o], i);
		transport->shutdown();
	}
	drop_identity(&identity);
	rmdir(folder);
	return tap_done();
}
