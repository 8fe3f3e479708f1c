/*-------------------------------------------------------------------------
 *
 * tls_guard.c
 *		Bounds what a receiver can have TLS do; see tls_guard.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/tls_guard.h"

#ifdef OUTBOX_HAVE_OPENSSL

#include <openssl/ssl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/clock.h"
#include "http/connection_map.h"

/*
 * Records without bytes of HTTP that a connection may receive within a
 * second, and at all.  A handshake has some ten, and a few tickets follow it.
 */
#define MOST_IN_A_SECOND 128
#define MOST_IN_A_LIFE 2000

typedef struct Guard
{
	int			fd;				/* the socket, where it is known; else 0 */
	int64_t		second_from;
	int			in_second;
	int			in_life;
} Guard;

static int	guard_index = -1;	/* where a connection keeps its guard */

static void
free_guard(void *parent, void *guard, CRYPTO_EX_DATA *data, int index, long argl, void *argp)
{
	free(guard);
}

static Guard *
guard_of(SSL *ssl)
{
	Guard	   *guard = SSL_get_ex_data(ssl, guard_index);

	if (guard != NULL)
		return guard;
	guard = calloc(1, sizeof(Guard));
	if (guard != NULL && SSL_set_ex_data(ssl, guard_index, guard) == 1)
		return guard;
	free(guard);
	return NULL;
}

static bool
is_too_much(Guard *guard)
{
	int64_t		now = outbox_clock_us();

	if (now - guard->second_from > 1000000)
	{
		guard->second_from = now;
		guard->in_second = 0;
	}
	guard->in_life++;
	return ++guard->in_second > MOST_IN_A_SECOND || guard->in_life > MOST_IN_A_LIFE;
}

/*
 * OpenSSL tells of everything that it sends and receives.  The header of a
 * record says what the record is; since TLS 1.3 it says "application data"
 * of all that is encrypted, and what is in it is told apart.
 */
static void
message_came(int written, int version, int content_type, const void *data, size_t len, SSL *ssl, void *arg)
{
	Guard	   *guard;

	if (written || len == 0 || (content_type != SSL3_RT_HEADER && content_type != SSL3_RT_INNER_CONTENT_TYPE))
		return;
	if (*(const unsigned char *) data == SSL3_RT_APPLICATION_DATA)
	{
		guard = SSL_get_ex_data(ssl, guard_index);
		if (guard != NULL && guard->fd > 0 && (content_type == SSL3_RT_INNER_CONTENT_TYPE) == (SSL_version(ssl) >= TLS1_3_VERSION))
			outbox_connection_spoke(guard->fd);
		return;
	}
	guard = guard_of(ssl);

	/* From here on nothing more is read of the connection: it has ended. */
	if (guard == NULL || is_too_much(guard))
		SSL_set_shutdown(ssl, SSL_get_shutdown(ssl) | SSL_RECEIVED_SHUTDOWN);
}

static CURLcode
set_up_context(CURL *easy, void *context, void *arg)
{
	SSL_CTX_set_msg_callback(context, message_came);
	return CURLE_OK;
}

/* Is libcurl's TLS the library whose functions are called here? */
static bool
is_our_openssl(void)
{
	const char *version = curl_version_info(CURLVERSION_NOW)->ssl_version;
	int			major;

	return version != NULL && sscanf(version, "OpenSSL/%d.", &major) == 1 &&
		major == (int) (OPENSSL_VERSION_NUMBER >> 28);
}

CURLcode
outbox_tls_guard(CURL *easy)
{
	if (guard_index < 0)
	{
		if (!is_our_openssl())
			return CURLE_OK;
		guard_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_guard);
		if (guard_index < 0)
			return CURLE_OUT_OF_MEMORY;
	}
	return curl_easy_setopt(easy, CURLOPT_SSL_CTX_FUNCTION, set_up_context);
}

/* The connection that a handle has, NULL for none or another library's. */
static SSL *
connection_of(CURL *easy)
{
	struct curl_tlssessioninfo *session = NULL;

	if (guard_index < 0 || curl_easy_getinfo(easy, CURLINFO_TLS_SSL_PTR, &session) != CURLE_OK ||
		session == NULL || session->backend != CURLSSLBACKEND_OPENSSL)
		return NULL;
	return session->internals;
}

bool
outbox_tls_holds_bytes(CURL *easy)
{
	SSL		   *ssl = connection_of(easy);

	return ssl != NULL && SSL_has_pending(ssl) == 1;
}

void
outbox_tls_listen(CURL *easy, int fd)
{
	SSL		   *ssl = connection_of(easy);
	Guard	   *guard = ssl != NULL ? guard_of(ssl) : NULL;

	if (guard != NULL)
		guard->fd = fd;
}

bool
outbox_tls_agreed_on_http2(CURL *easy)
{
	SSL		   *ssl = connection_of(easy);
	const unsigned char *protocol = NULL;
	unsigned	len = 0;

	if (ssl != NULL)
		SSL_get0_alpn_selected(ssl, &protocol, &len);
	return len == 2 && memcmp(protocol, "h2", 2) == 0;
}

#else

bool
outbox_tls_holds_bytes(CURL *easy)
{
	return false;
}

void
outbox_tls_listen(CURL *easy, int fd)
{
}

bool
outbox_tls_agreed_on_http2(CURL *easy)
{
	return false;
}

CURLcode
outbox_tls_guard(CURL *easy)
{
	return CURLE_OK;
}

#endif
