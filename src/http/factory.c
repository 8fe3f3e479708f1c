/*-------------------------------------------------------------------------
 *
 * factory.c
 *		The transports of this library, by name; see factory.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/factory.h"

#include <string.h>

const HttpTransport *
outbox_http_find_transport(const char *name)
{
	static const HttpTransport *const transports[] = {&outbox_curl_transport, &outbox_fast_transport};

	for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++)
		if (strcmp(transports[i]->name, name) == 0)
			return transports[i];
	return NULL;
}
