/*-------------------------------------------------------------------------
 *
 * payload.h
 *		How long a payload is as JSON text, mostly without writing it out.
 *
 * Pure: allocates in the current memory context, touches nothing else.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PAYLOAD_H
#define OUTBOX_PAYLOAD_H

#include "postgres.h"

#include "utils/jsonb.h"

/*
 * Is the payload, as JSON text, longer than limit bytes?  A jsonb value can
 * be far smaller than its text: 1e100000 is stored in ten bytes.
 */
extern bool outbox_payload_exceeds(Jsonb *payload, int64 limit);

#endif							/* OUTBOX_PAYLOAD_H */
