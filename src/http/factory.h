/*-------------------------------------------------------------------------
 *
 * factory.h
 *		The transports of this library, by name.
 *
 * Promises: neither allocates nor starts anything.
 *
 * Process: the dispatcher, by module.c; and the tests, without any server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_FACTORY_H
#define OUTBOX_HTTP_FACTORY_H

#include "http/transport.h"

/* Ordinary libcurl transfers. */
extern const HttpTransport outbox_curl_transport;

/* HTTP/1.1 spoken here on connections that libcurl opens; the rest by the one above. */
extern const HttpTransport outbox_fast_transport;

/* "curl" or "fast"; NULL for a name nobody has. */
extern const HttpTransport *outbox_http_find_transport(const char *name);

#endif							/* OUTBOX_HTTP_FACTORY_H */
