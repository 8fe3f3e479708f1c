/*-------------------------------------------------------------------------
 *
 * signature.h
 *		Standard Webhooks signatures: HMAC-SHA256 (v1) and Ed25519 (v1a).
 *
 * A signer holds the prepared keys of one handler.  It lives in the memory
 * context that was current when it was made and gives back what it holds
 * outside of it (HMAC state, OpenSSL keys) when that context is reset or
 * deleted.  Neither SPI nor curl.  Secrets never appear in an error message.
 *
 * Processes: the dispatcher signs; any backend checks and makes secrets.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SIGNATURE_H
#define OUTBOX_SIGNATURE_H

#include "outbox.h"

#include <sys/uio.h>

#include "lib/stringinfo.h"

typedef struct OutboxSigner OutboxSigner;

/*
 * So many secrets of a handler sign, the newest of them, however often they
 * are rotated: receivers bound the length of headers.
 */
#define OUTBOX_MAX_SIGNATURES 10

/* One secret of a handler and how long it signs. */
typedef struct OutboxSecret
{
	const char *text;			/* "whsec_..." or "whsk_..." */
	TimestampTz expires_at;		/* DT_NOEND: until it is replaced */
} OutboxSecret;

/*
 * Prepare the keys of a handler, newest first; what is beyond
 * OUTBOX_MAX_SIGNATURES is passed over.  Raises invalid_parameter_value
 * for a secret that is none (see outbox_check_secret).
 */
extern OutboxSigner *outbox_signer_create(int nsecrets, const OutboxSecret *secrets);

/*
 * Append the value of webhook-signature for "id.timestamp.body", the body in
 * so many parts: one
 * signature for each secret that has not expired at now, separated by
 * spaces.  Appends nothing, and returns false, when all have expired.
 */
extern bool outbox_signer_append(const OutboxSigner *signer, StringInfo out, TimestampTz now,
								 const char *id, size_t id_len,
								 const char *timestamp, size_t timestamp_len,
								 const struct iovec *body, int nparts);

/* An upper bound of what outbox_signer_append() appends, in bytes. */
extern int	outbox_signer_room(const OutboxSigner *signer);

/*
 * Raise invalid_parameter_value unless text is a secret: "whsec_" and 24 to
 * 64 bytes in base64, or "whsk_" and an Ed25519 private key in base64 (32
 * bytes of seed, or seed and public key).
 */
extern void outbox_check_secret(const char *text);

/*
 * A new secret, palloc'd: "whsec_" and 32 random bytes, or "whsk_" and an
 * Ed25519 key pair.
 */
extern char *outbox_generate_secret(bool asymmetric);

/*
 * The "whpk_" public key that verifies a "whsk_" secret's signatures,
 * palloc'd; NULL for a "whsec_" one, which has none.
 */
extern char *outbox_public_key(const char *secret);

#endif							/* OUTBOX_SIGNATURE_H */
