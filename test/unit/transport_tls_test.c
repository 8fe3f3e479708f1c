/*
 * Both transports over TLS, against receivers with good and bad certificates
 * made on the spot.
 */
#include <curl/curl.h>
#include <dlfcn.h>

#include "tls_wire.h"
#include "transport_harness.h"
#include "transport_storm.h"

#define TEXT(literal) literal, sizeof(literal) - 1

static const RawAnswer raw_table[] = {
	{"to-eof", TEXT("HTTP/1.1 200 OK\r\n\r\nuntil the end"), true},
};

/*
 * The tests
 */

static Identity authority,
			good,
			elsewhere,
			expired,
			client,
			stranger;

static int	good_port,
			rude_port;

static void
set_up_tls(Call *call, int port, const char *path)
{
	char		url[256];

	snprintf(url, sizeof(url), "https://localhost:%d%s", port, path);
	set_up_url(call, url);
	call->target.tls_ca_file = authority.certificate_file;
}

static void
expect_tls_failure(Call *call, const char *what)
{
	int			before = seen.requests;

	perform(call);
	ok(failed_as(call, HTTP_FAILED_TLS), "%s: %s: %s", transport->name, what, call->exchange.error);
	is_int(seen.requests, before, "%s: %s: nothing was handled", transport->name, what);
	finish(call);
}

static void
check_certificates(void)
{
	Call		call;
	SSL_CTX    *context;

	set_up_tls(&call, good_port, "/ok");
	perform(&call);
	ok(answered_with(&call, 200), "%s: a certificate of our authority", transport->name);
	release(&call);
	for (int i = 0; i < 3; i++)
	{
		pause_ms(10);
		perform(&call);
		ok(answered_with(&call, 200) && call.exchange.reused && !call.exchange.resent, "%s: the connection is kept", transport->name);
		release(&call);
	}
	transport->forget(&call.target);

	set_up_tls(&call, good_port, "/ok");
	call.target.tls_ca_file = NULL;
	expect_tls_failure(&call, "the system's authorities do not know it");

	set_up_tls(&call, good_port, "/ok");
	call.target.tls_ca_file = stranger.certificate_file;
	expect_tls_failure(&call, "another authority");

	set_up_tls(&call, good_port, "/ok");
	call.target.tls_ca_file = "/nonexistent/ca.crt";
	expect_tls_failure(&call, "an authority's file that is not there");

	set_up_tls(&call, tls_listen(tls_context(&elsewhere), false), "/ok");
	expect_tls_failure(&call, "a certificate for another host");

	set_up_tls(&call, tls_listen(tls_context(&expired), false), "/ok");
	expect_tls_failure(&call, "an expired certificate");

	set_up_tls(&call, tls_listen(tls_context(&stranger), false), "/ok");
	expect_tls_failure(&call, "a certificate signed by itself");

	context = tls_context(&good);
	SSL_CTX_set_security_level(context, 0);
	SSL_CTX_set_max_proto_version(context, TLS1_1_VERSION);
	set_up_tls(&call, tls_listen(context, false), "/ok");
	expect_tls_failure(&call, "TLS 1.1");

	context = tls_context(&good);
	SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
	set_up_tls(&call, tls_listen(context, false), "/ok");
	perform(&call);
	ok(answered_with(&call, 200), "%s: TLS 1.2", transport->name);
	finish(&call);
}

/* What libcurl refuses once it will always refuse: the request fails, and says why. */
static void
check_refused_option(void)
{
	static char file[9 * 1000 * 1000];
	Call		call;

	memset(file, 'x', sizeof(file) - 1);
	set_up_tls(&call, good_port, "/ok");
	call.target.tls_ca_file = file;
	for (int i = 0; i < 2; i++)
	{
		call.exchange.failure = HTTP_ANSWERED;
		ok(perform(&call), "%s: an option that libcurl refuses is not tried for ever", transport->name);
		ok(failed_as(&call, HTTP_FAILED_OTHER) && strstr(call.exchange.error, "libcurl refuses") != NULL, "%s: %s", transport->name, call.exchange.error);
		release(&call);
	}
	transport->forget(&call.target);
}

static void
check_client_certificates(void)
{
	static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};

	for (int i = 0; i < 2; i++)
	{
		Call		call;
		SSL_CTX    *context = tls_context(&good);
		int			port;

		SSL_CTX_set_min_proto_version(context, versions[i]);
		SSL_CTX_set_max_proto_version(context, versions[i]);
		SSL_CTX_load_verify_file(context, authority.certificate_file);
		SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
		port = tls_listen(context, false);

		set_up_tls(&call, port, "/ok");
		call.target.tls_certificate_file = client.certificate_file;
		call.target.tls_key_file = client.key_file;
		perform(&call);
		ok(answered_with(&call, 200), "%s: a client certificate, TLS 1.%d", transport->name, i + 2);
		finish(&call);

		/*
		 * In TLS 1.3 the refusal comes when the handshake is over for us, and
		 * the reset behind it may overtake the alert.
		 */
		set_up_tls(&call, port, "/ok");
		perform(&call);
		ok(call.exchange.failure == HTTP_FAILED_TLS ||
		   (i == 1 && failed_as(&call, HTTP_FAILED_CONNECT)),
		   "%s: no client certificate, TLS 1.%d: %s", transport->name, i + 2, call.exchange.error);
		finish(&call);

		set_up_tls(&call, port, "/ok");
		call.target.tls_certificate_file = client.certificate_file;
		call.target.tls_key_file = stranger.key_file;
		expect_tls_failure(&call, "a client certificate with another key");
	}
}

/* How an end shows under TLS, said or not, for each number of bytes before it. */
static void
check_ends(int port)
{
	for (int n = 0; n <= WHOLE; n += n < 20 ? 1 : 7)
	{
		Call		call;
		char		path[64];

		snprintf(path, sizeof(path), "/cut/%d", n);
		set_up_tls(&call, port, path);
		perform(&call);
		if (n == 0)
			ok(failed_as(&call, HTTP_FAILED_CONNECT), "%s: closed before the answer", transport->name);
		else if (n < WHOLE)
			ok(call.exchange.failure == HTTP_FAILED_BODY || (!is_fast() && n < 17 && failed_as(&call, HTTP_FAILED_CONNECT)),
			   "%s: closed after %d bytes", transport->name, n);
		ok(!call.exchange.resent, "%s: not sent again", transport->name);
		finish(&call);

		snprintf(path, sizeof(path), "/cut-second/%d", n);
		set_up_tls(&call, port, path);
		perform(&call);
		ok(answered_with(&call, 200), "%s: the first is answered", transport->name);
		release(&call);
		perform(&call);
		if (call.exchange.resent)
			ok(answered_with(&call, 200) && (n == 0 || (n <= 17 && !is_fast())), "%s: the second, closed after %d, is sent again", transport->name, n);
		else
			ok(n == WHOLE ? answered_with(&call, 200) : n > 0 && failed_as(&call, HTTP_FAILED_BODY),
			   "%s: the second, closed after %d, is not", transport->name, n);
		finish(&call);
	}
}

static void
check_traffic(void)
{
	static char body[2 * 1024 * 1024];
	static Call calls[30];
	Call		call;
	uint64_t	sum = 0;
	char		expected[64];
	int			before;
	int			n = 0;

	for (size_t i = 0; i < sizeof(body); i++)
	{
		body[i] = "zyxwvutsrqponmlkjihgfedcba"[i * 6151 % 26];
		sum = sum * 31 + (unsigned char) body[i];
	}
	snprintf(expected, sizeof(expected), "%zu %llu", sizeof(body), (unsigned long long) sum);
	set_up_tls(&call, good_port, "/received");
	call.exchange.body = body;
	call.exchange.body_len = sizeof(body);
	for (int i = 0; i < 2; i++)
	{
		perform(&call);
		ok(answered_with(&call, 200) && strncmp(call.exchange.response, expected, strlen(expected)) == 0, "%s: 2 MB arrive whole", transport->name);
		release(&call);
	}
	call.exchange.body_len = 0;
	perform(&call);
	ok(answered_with(&call, 200) && strncmp(call.exchange.response, "0 0", 3) == 0, "%s: an empty body", transport->name);
	finish(&call);

	set_up_tls(&call, good_port, "/early");
	call.exchange.body = body;
	call.exchange.body_len = sizeof(body);
	perform(&call);
	ok(answered_with(&call, 413), "%s: answered before everything was sent", transport->name);
	finish(&call);

	set_up_tls(&call, good_port, "/huge/20000000");
	perform(&call);
	ok(answered_with(&call, 200) && call.exchange.response_total > HTTP_LONGEST_ANSWER && call.exchange.response_len == 1024,
	   "%s: the beginning of a body of 20 MB", transport->name);
	finish(&call);

	set_up_tls(&call, good_port, "/raw/to-eof");
	perform(&call);
	ok(answered_with(&call, 200) && call.exchange.response_len == 13, "%s: a body up to the end", transport->name);
	finish(&call);

	set_up_tls(&call, good_port, "/silent");
	call.target.timeout_ms = 300;
	before = seen.ended;
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_TIMEOUT), "%s: silence times out", transport->name);
	finish(&call);
	ok(wait_for_count(&seen.ended, before + 1), "%s: and the connection is closed", transport->name);

	/* Idle connections that the receiver closes are noticed; by libcurl only when it sends. */
	set_up_tls(&call, good_port, "/close-after");
	for (int i = 0; i < 3; i++)
	{
		before = seen.closed;
		perform(&call);
		ok(answered_with(&call, 200) && !(is_fast() && call.exchange.resent), "%s: closed behind an answer", transport->name);
		release(&call);
		wait_for_count(&seen.closed, before + 1);
		turn(50);
	}
	transport->forget(&call.target);

	/* Many at once, while others open: libcurl looks at idle connections as it opens new ones. */
	set_up_tls(&calls[0], good_port, "/later/30");
	for (int i = 1; i < 30; i++)
	{
		calls[i] = calls[0];
		calls[i].exchange.target = &calls[0].target;
		calls[i].exchange.owner = &calls[i];
	}
	for (int round = 0; round < 4; round++)
	{
		for (int i = 0; i < 30; i++)
			n += submit(&calls[i]) ? 0 : 1;
		is_int(run(30), 30, "%s: thirty at once", transport->name);
		for (int i = 0; i < 30; i++)
		{
			n += calls[i].exchange.failure != HTTP_ANSWERED;
			release(&calls[i]);
		}
		pause_ms(400);
	}
	is_int(n, 0, "%s: all are answered", transport->name);
	before = seen.ended;
	transport->forget(&calls[0].target);
	turn(0);
	ok(wait_for_count(&seen.ended, before + 30), "%s: and closed when forgotten", transport->name);

	/* A receiver that does not speak HTTP/2 though we would. */
	set_up_tls(&call, good_port, "/ok");
	call.target.http_version = 20;
	perform(&call);
	ok(answered_with(&call, 200), "%s: HTTP/2 falls back to HTTP/1.1", transport->name);
	finish(&call);
}

/* TLS has messages of its own, in which a receiver could keep us busy for ever. */
static void
check_nagging(void)
{
	Call		call;
	Call		other;
	int			before;

	set_up_tls(&call, good_port, "/nag");
	before = seen.closed;
	perform(&call);
	ok(call.exchange.failure == HTTP_FAILED_CONNECT || failed_as(&call, HTTP_FAILED_TLS) || failed_as(&call, HTTP_FAILED_BODY),
	   "%s: tickets instead of an answer end the connection: %s", transport->name, call.exchange.error);
	finish(&call);
	ok(wait_for_count(&seen.closed, before + 1) && seen.nags < MANY_NAGS, "%s: after %d tickets", transport->name, (int) seen.nags);
	seen.nags = 0;

	set_up_tls(&call, good_port, "/nag-afterwards");
	before = seen.closed;
	perform(&call);
	ok(answered_with(&call, 200), "%s: an answer, and tickets behind it", transport->name);
	release(&call);
	for (int i = 0; i < 3; i++)
	{
		set_up_tls(&other, good_port, "/ok");
		perform(&other);
		ok(answered_with(&other, 200), "%s: another receiver is served meanwhile", transport->name);
		finish(&other);
	}
	perform(&call);
	ok(answered_with(&call, 200), "%s: the next request is answered", transport->name);
	release(&call);
	transport->forget(&call.target);
	for (int i = 0; i < 10; i++)
		turn(1);
	ok(wait_for_count(&seen.closed, before + 3) && seen.nags < 2 * MANY_NAGS, "%s: after %d tickets", transport->name, (int) seen.nags);
	seen.nags = 0;
}

static int	opened_authorities;
static bool ever_opened;

/* How OpenSSL opens files.  These stand before the C library's, for other libraries too. */
#define STANDS_BEFORE __attribute__((visibility("default")))

STANDS_BEFORE FILE *
fopen64(const char *path, const char *mode)
{
	FILE	   *(*real) (const char *, const char *) = (FILE *(*) (const char *, const char *)) dlsym(RTLD_NEXT, "fopen64");

	if (strstr(path, "/certs/") != NULL)
	{
		opened_authorities++;
		ever_opened = true;
	}
	return real(path, mode);
}

STANDS_BEFORE FILE *
fopen(const char *path, const char *mode)
{
	return fopen64(path, mode);
}

/* The system's authorities are read once, not for each connection. */
static void
check_authorities(void)
{
	Call		call;
	char	   *file = NULL;
	CURL	   *easy = curl_easy_init();

	if (curl_easy_getinfo(easy, CURLINFO_CAINFO, &file) != CURLE_OK || file == NULL || access(file, R_OK) != 0)
		skip("no file of the system's authorities");
	else
	{
		opened_authorities = 0;
		for (int i = 0; i < 5; i++)
		{
			set_up_tls(&call, good_port, "/ok");
			call.target.tls_ca_file = NULL;
			perform(&call);
			finish(&call);
		}
		ok(ever_opened && opened_authorities <= 1, "%s: the system's authorities were read %d times", transport->name, opened_authorities);
	}
	curl_easy_cleanup(easy);
}

/* A second answer in the packet of the first: it has been read, and decoded maybe, before anybody looks. */
static void
check_strays(void)
{
	Call		call;
	int			n = 0;

	set_up_tls(&call, good_port, "/twice/0");
	for (int i = 0; i < 20; i++)
	{
		int			before = seen.strays;

		perform(&call);
		n += call.exchange.status == 200;
		release(&call);
		wait_for_count(&seen.strays, before + 1);
	}
	is_int(n, 20, "%s: a stray answer is nobody's", transport->name);
	finish(&call);
}

static void
check_changes(void)
{
	char		good_origin[64];
	char		bad_origin[64];

	snprintf(good_origin, sizeof(good_origin), "https://localhost:%d", good_port);
	snprintf(bad_origin, sizeof(bad_origin), "https://localhost:%d", rude_port);
	check_storm(good_origin, bad_origin, authority.certificate_file, 1000);
}

static void
make_identities(void)
{
	make_folder();
	make_identity(&authority, "authority", NULL, -3600, 3600, NULL);
	make_identity(&stranger, "stranger", "DNS:localhost", -3600, 3600, NULL);
	make_identity(&good, "good", "DNS:localhost", -3600, 3600, &authority);
	make_identity(&elsewhere, "elsewhere", "DNS:elsewhere.example", -3600, 3600, &authority);
	make_identity(&expired, "expired", "DNS:localhost", -7200, -3600, &authority);
	make_identity(&client, "client", NULL, -3600, 3600, &authority);
}

static void
drop_identities(void)
{
	Identity   *const all[] = {&authority, &stranger, &good, &elsewhere, &expired, &client};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		drop_identity(all[i]);
	rmdir(folder);
}

int
main(void)
{
	static const char *const names[] = {"curl", "fast"};
	HttpTransportOptions options = {.max_in_flight = 200};

	signal(SIGPIPE, SIG_IGN);
	raw_answers = raw_table;
	nraw_answers = 1;
	make_identities();
	good_port = tls_listen(tls_context(&good), false);
	rude_port = tls_listen(tls_context(&good), true);
	for (int i = 0; i < 2; i++)
	{
		start_transport(names[i], &options);
		check_certificates();
		check_client_certificates();
		check_refused_option();
		check_ends(good_port);
		check_ends(rude_port);
		check_traffic();
		check_nagging();
		check_authorities();
		check_strays();
		check_changes();
		transport->shutdown();
	}
	drop_identities();
	return tap_done();
}
