/*-------------------------------------------------------------------------
 *
 * module.c
 *		What makes outbox_http a library that the server agrees to load.
 *
 * Promises: the only file of this library that sees a header of the server,
 * and the only symbol that leaves it.  The dispatcher loads the library and
 * looks the factory up by name; no other process does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "http/factory.h"

PG_MODULE_MAGIC;

PGDLLEXPORT const HttpTransport *outbox_http_transport(const char *name);

const HttpTransport *
outbox_http_transport(const char *name)
{
	return outbox_http_find_transport(name);
}
