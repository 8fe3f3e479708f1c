/*-------------------------------------------------------------------------
 *
 * tls_guard.h
 *		Bounds what a receiver can have TLS do besides carrying bytes.
 *
 * A call that reads from a TLS connection does not return while messages of
 * the protocol itself come in (tickets, new keys, greetings), so that a
 * receiver which sends them without end would hold the process.  Records that
 * carry no bytes of HTTP are therefore counted; beyond what any honest
 * connection has, the connection counts as closed by the other side.
 *
 * Works where libcurl uses the OpenSSL that this library was built with.
 * Process: the dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_TLS_GUARD_H
#define OUTBOX_HTTP_TLS_GUARD_H

#include <curl/curl.h>
#include <stdbool.h>

/* Guard the TLS connections of a handle.  CURLE_OK where nothing can be guarded, too. */
extern CURLcode outbox_tls_guard(CURL *easy);

/*
 * Has TLS read something of the connection that a handle has which nobody has
 * asked it for yet?  False where that cannot be known.
 */
extern bool outbox_tls_holds_bytes(CURL *easy);

/* Tell outbox_connection_spoke() of what comes on the connection that a handle has, which is that socket's. */
extern void outbox_tls_listen(CURL *easy, int fd);

/* Was HTTP/2 agreed on for the connection that a handle has?  False where that cannot be known. */
extern bool outbox_tls_agreed_on_http2(CURL *easy);

#endif							/* OUTBOX_HTTP_TLS_GUARD_H */
