/*-------------------------------------------------------------------------
 *
 * url.h
 *		Which URLs a handler may have.
 *
 * http or https, a host, nothing that is secret or means something else to
 * the next parser: no credentials, no fragment, no backslash, no control
 * character or space, no number in place of an address.
 *
 * Pure: allocates only for a fault's text.  Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_URL_H
#define OUTBOX_URL_H

#include "common/fault.h"

#define OUTBOX_URL_MAX 2048

/* Fills fault if it is none that requests may go to. */
extern bool outbox_check_url(const char *url, OutboxFault *fault);

#endif							/* OUTBOX_URL_H */
