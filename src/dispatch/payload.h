/*-------------------------------------------------------------------------
 *
 * payload.h
 *		Large payloads, which are read when they are about to be sent.
 *
 * A delivery whose payload is large is taken into memory without it and waits
 * in its lane, apart.  When the lane could send it and there is memory
 * (memory.h), the payload is asked for; then it is read in a transaction, and
 * written out as it is sent, some of it in each turn of the loop, so that
 * nobody waits long for it: as JSON text or another text in UTF-8, or as
 * bytes; embedded in JSON the latter two look otherwise, and are another
 * payload.  The text is shared by all deliveries of the message, of whatever
 * handler, that send it in the same shape, and given back when the last of
 * them has been answered.
 *
 *		asked for ──transaction──► read ──slices──► there
 *
 * Memory holds while it is written: the stored form, decompressed, and the
 * text; from then on the text.  What would not fit with others is asked for
 * when there are no others, and who has waited for long goes first.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DISPATCH_PAYLOAD_H
#define OUTBOX_DISPATCH_PAYLOAD_H

#include "dispatch/lane.h"

typedef struct OutboxPayload OutboxPayload;

/* Prepare, once per process. */
extern void outbox_payloads_init(MemoryContext context);

/* Ask for payloads of the lane's deliveries, as many as it could send now.  False if it has to wait for memory. */
extern bool outbox_payloads_ask(OutboxLane *lane, TimestampTz now);

/* The delivery has no use for its payload any more. */
extern void outbox_payload_release(OutboxDelivery *delivery);

/*
 * The delivery was out, and is about to be queued again, or to wait for others
 * of its key: if its handler sends in another format by now, in which its
 * payload looks otherwise, or may do so until it has waited, that has to be
 * asked for anew.
 */
extern void outbox_payload_fit(OutboxDelivery *delivery, bool waits);

/* The lane sends nothing of what it has: nobody has to wait for it. */
extern void outbox_payloads_let_others_go(const OutboxLane *lane);

/*
 * Read some of what was asked for, in a transaction (message_reader.h is
 * open).  When that has committed, outbox_payloads_finish(), which raises
 * nothing; when it has failed, outbox_payloads_abort(): returns the id of the
 * message whose payload was being read, NULL if it was none.
 */
extern bool outbox_payloads_asked(void);
extern void outbox_payloads_read(void);
extern void outbox_payloads_finish(void);
extern const pg_uuid_t *outbox_payloads_abort(void);

/* This one cannot be read, now or later: its deliveries become dead letters. */
extern void outbox_payload_bury(const pg_uuid_t *id, const char *error);

/* Write some of what was read, for a moment; is there any?  Outside of transactions; raises nothing. */
extern void outbox_payloads_write(TimestampTz now);
extern bool outbox_payloads_writing(void);

#endif							/* OUTBOX_DISPATCH_PAYLOAD_H */
