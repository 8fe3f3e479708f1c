/*-------------------------------------------------------------------------
 *
 * signature.c
 *		Standard Webhooks signatures.
 *
 * Promises: see signature.h.
 *
 * PostgreSQL ties an HMAC state to the current resource owner.  A signer
 * outlives transactions and may sign outside of one, where there is no
 * owner at all, so its states belong to an owner of this file that lives as
 * long as the process.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef USE_OPENSSL
#include <openssl/evp.h>
#endif

#include "common/base64.h"
#include "common/hmac.h"
#include "common/sha2.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "format/signature.h"

#define SECRET_PREFIX "whsec_"
#define PRIVATE_KEY_PREFIX "whsk_"
#define PUBLIC_KEY_PREFIX "whpk_"

#define SECRET_MIN_BYTES 24
#define SECRET_MAX_BYTES 64
#define GENERATED_SECRET_BYTES 32
#define ED25519_SEED_BYTES 32
#define ED25519_PUBLIC_BYTES 32
#define ED25519_SIGNATURE_BYTES 64

/* A secret as bytes. */
typedef struct SecretBytes
{
	bool		asymmetric;
	int			len;
	uint8		bytes[SECRET_MAX_BYTES];
} SecretBytes;

typedef struct SigningKey
{
	TimestampTz expires_at;
	SecretBytes secret;
	pg_hmac_ctx *hmac;			/* NULL for Ed25519 */
#ifdef USE_OPENSSL
	EVP_PKEY   *ed25519;		/* NULL for HMAC */
#endif
} SigningKey;

struct OutboxSigner
{
	MemoryContextCallback cleanup;
	int			nkeys;
	SigningKey	keys[FLEXIBLE_ARRAY_MEMBER];
};

static ResourceOwner signing_owner = NULL;

/* Make this file's resource owner the current one; returns the one before. */
static ResourceOwner
enter_owner(void)
{
	ResourceOwner before = CurrentResourceOwner;

	if (signing_owner == NULL)
		signing_owner = ResourceOwnerCreate(NULL, "outbox signatures");
	CurrentResourceOwner = signing_owner;
	return before;
}

static void
leave_owner(ResourceOwner before)
{
	CurrentResourceOwner = before;
}

static void
append_base64(StringInfo out, const uint8 *bytes, int len)
{
	int			room = pg_b64_enc_len(len);
	int			written;

	enlargeStringInfo(out, room);
	written = pg_b64_encode((const void *) bytes, len, out->data + out->len, room);
	if (written < 0)
		elog(ERROR, "could not encode a signature");
	out->len += written;
	out->data[out->len] = '\0';
}

/* Decode base64 of at most SECRET_MAX_BYTES; -1 if it is not, or longer. */
static int
decode_base64(const char *text, uint8 *bytes)
{
	uint8		buffer[SECRET_MAX_BYTES + 3];
	size_t		len = strlen(text);
	int			decoded;

	/* The decoder would pass over white space. */
	if (len == 0 || len > (size_t) pg_b64_enc_len(SECRET_MAX_BYTES) ||
		strcspn(text, " \t\r\n") != len)
		return -1;
	decoded = pg_b64_decode(text, (int) len, (void *) buffer, sizeof(buffer));
	if (decoded > SECRET_MAX_BYTES)
		decoded = -1;
	if (decoded > 0)
		memcpy(bytes, buffer, decoded);
	explicit_bzero(buffer, sizeof(buffer));
	return decoded;
}

static bool
has_prefix(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static void
refuse_secret(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid signing secret"),
			 errdetail_internal("%s", detail),
			 errhint("It is \"whsec_\" followed by 24 to 64 bytes in base64, or \"whsk_\" followed by an Ed25519 "
					 "private key in base64. outbox.rotate_secret() makes one, and tells it.")));
}

/* Read a secret's text into bytes, or raise. */
static void
read_secret(const char *text, SecretBytes *secret)
{
	memset(secret, 0, sizeof(*secret));
	if (has_prefix(text, SECRET_PREFIX))
	{
		secret->len = decode_base64(text + strlen(SECRET_PREFIX), secret->bytes);
		if (secret->len < SECRET_MIN_BYTES)
			refuse_secret("What follows \"whsec_\" is not 24 to 64 bytes in base64.");
	}
	else if (has_prefix(text, PRIVATE_KEY_PREFIX))
	{
		secret->asymmetric = true;
		secret->len = decode_base64(text + strlen(PRIVATE_KEY_PREFIX), secret->bytes);
		if (secret->len != ED25519_SEED_BYTES &&
			secret->len != ED25519_SEED_BYTES + ED25519_PUBLIC_BYTES)
			refuse_secret("What follows \"whsk_\" is not 32 or 64 bytes in base64.");
	}
	else if (has_prefix(text, PUBLIC_KEY_PREFIX))
		refuse_secret("A \"whpk_\" key is the public half: it verifies, it does not sign.");
	else
		refuse_secret("It starts with neither \"whsec_\" nor \"whsk_\".");
}

#ifdef USE_OPENSSL

/* The Ed25519 key of a secret, or raise.  The caller frees it. */
static EVP_PKEY *
ed25519_key(const SecretBytes *secret, uint8 *public_key)
{
	EVP_PKEY   *key;
	size_t		len = ED25519_PUBLIC_BYTES;

	key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, secret->bytes,
									   ED25519_SEED_BYTES);
	if (key == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("could not prepare an Ed25519 key"),
				 errdetail("The server's OpenSSL does not provide Ed25519."),
				 errhint("Use a \"whsec_\" secret.")));
	if (EVP_PKEY_get_raw_public_key(key, public_key, &len) != 1 ||
		len != ED25519_PUBLIC_BYTES)
	{
		EVP_PKEY_free(key);
		elog(ERROR, "could not derive an Ed25519 public key");
	}
	if (secret->len > ED25519_SEED_BYTES &&
		memcmp(public_key, secret->bytes + ED25519_SEED_BYTES, ED25519_PUBLIC_BYTES) != 0)
	{
		EVP_PKEY_free(key);
		refuse_secret("The public half of the \"whsk_\" key does not belong to its private half.");
	}
	return key;
}

/* Ed25519 signs a message in one piece, so it is put together first. */
static void
ed25519_sign(EVP_PKEY *key, const StringInfoData *content, uint8 *signature)
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	size_t		len = ED25519_SIGNATURE_BYTES;
	bool		signed_it;

	signed_it = context != NULL &&
		EVP_DigestSignInit(context, NULL, NULL, NULL, key) == 1 &&
		EVP_DigestSign(context, signature, &len,
					   (const unsigned char *) content->data, content->len) == 1 &&
		len == ED25519_SIGNATURE_BYTES;
	EVP_MD_CTX_free(context);
	if (!signed_it)
		elog(ERROR, "could not make an Ed25519 signature");
}

#else

static void
refuse_ed25519(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("Ed25519 signatures are not supported by this build"),
			 errdetail("PostgreSQL was built without OpenSSL."),
			 errhint("Use a \"whsec_\" secret.")));
}

#endif

/* Give back what the memory context does not know of. */
static void
release_keys(void *arg)
{
	OutboxSigner *signer = arg;
	ResourceOwner before = enter_owner();

	for (int i = 0; i < signer->nkeys; i++)
	{
		SigningKey *key = &signer->keys[i];

		if (key->hmac != NULL)
			pg_hmac_free(key->hmac);
#ifdef USE_OPENSSL
		EVP_PKEY_free(key->ed25519);
#endif
		explicit_bzero(key, sizeof(*key));
	}
	leave_owner(before);
}

static void
prepare_key(SigningKey *key, const OutboxSecret *secret)
{
	key->expires_at = secret->expires_at;
	read_secret(secret->text, &key->secret);
	if (key->secret.asymmetric)
	{
#ifdef USE_OPENSSL
		uint8		public_key[ED25519_PUBLIC_BYTES];

		key->ed25519 = ed25519_key(&key->secret, public_key);
#else
		refuse_ed25519();
#endif
	}
	else
	{
		ResourceOwner before = enter_owner();

		key->hmac = pg_hmac_create(PG_SHA256);
		leave_owner(before);
		if (key->hmac == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("out of memory")));
	}
}

OutboxSigner *
outbox_signer_create(int nsecrets, const OutboxSecret *secrets)
{
	OutboxSigner *signer;

	nsecrets = Min(nsecrets, OUTBOX_MAX_SIGNATURES);
	signer = palloc0(offsetof(OutboxSigner, keys) + nsecrets * sizeof(SigningKey));
	signer->cleanup.func = release_keys;
	signer->cleanup.arg = signer;
	signer->nkeys = nsecrets;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &signer->cleanup);

	for (int i = 0; i < nsecrets; i++)
		prepare_key(&signer->keys[i], &secrets[i]);
	return signer;
}

/* What is signed, in its pieces. */
typedef struct SignedContent
{
	const char *id;
	size_t		id_len;
	const char *timestamp;
	size_t		timestamp_len;
	const struct iovec *body;
	int			nparts;
} SignedContent;

static bool
update_hmac(pg_hmac_ctx *hmac, const struct iovec *parts, int nparts)
{
	for (int i = 0; i < nparts; i++)
	{
		if (pg_hmac_update(hmac, parts[i].iov_base, parts[i].iov_len) < 0)
			return false;
	}
	return true;
}

static void
append_hmac(const SigningKey *key, const SignedContent *content, StringInfo out)
{
	uint8		digest[PG_SHA256_DIGEST_LENGTH];
	ResourceOwner before = enter_owner();
	bool		failed;

	failed = pg_hmac_init(key->hmac, key->secret.bytes, key->secret.len) < 0 ||
		pg_hmac_update(key->hmac, (const uint8 *) content->id, content->id_len) < 0 ||
		pg_hmac_update(key->hmac, (const uint8 *) ".", 1) < 0 ||
		pg_hmac_update(key->hmac, (const uint8 *) content->timestamp, content->timestamp_len) < 0 ||
		pg_hmac_update(key->hmac, (const uint8 *) ".", 1) < 0 ||
		!update_hmac(key->hmac, content->body, content->nparts) ||
		pg_hmac_final(key->hmac, digest, sizeof(digest)) < 0;
	leave_owner(before);
	if (failed)
		elog(ERROR, "could not make an HMAC signature");

	appendBinaryStringInfo(out, "v1,", 3);
	append_base64(out, digest, sizeof(digest));
}

#ifdef USE_OPENSSL

static void
append_ed25519(const SigningKey *key, const SignedContent *content, StringInfo out)
{
	uint8		signature[ED25519_SIGNATURE_BYTES];
	StringInfoData message;
	size_t		len = content->id_len + content->timestamp_len + 2;

	for (int i = 0; i < content->nparts; i++)
		len += content->body[i].iov_len;
	initStringInfo(&message);
	enlargeStringInfo(&message, (int) Min(len, MaxAllocSize));
	appendBinaryStringInfo(&message, content->id, (int) content->id_len);
	appendStringInfoChar(&message, '.');
	appendBinaryStringInfo(&message, content->timestamp, (int) content->timestamp_len);
	appendStringInfoChar(&message, '.');
	for (int i = 0; i < content->nparts; i++)
		appendBinaryStringInfo(&message, content->body[i].iov_base, (int) content->body[i].iov_len);
	ed25519_sign(key->ed25519, &message, signature);
	pfree(message.data);

	appendBinaryStringInfo(out, "v1a,", 4);
	append_base64(out, signature, sizeof(signature));
}

#endif

int
outbox_signer_room(const OutboxSigner *signer)
{
	/* "v1a," and 64 bytes in base64 is the longest, and a space. */
	return signer->nkeys * (4 + 88 + 1);
}

bool
outbox_signer_append(const OutboxSigner *signer, StringInfo out, TimestampTz now,
					 const char *id, size_t id_len,
					 const char *timestamp, size_t timestamp_len,
					 const struct iovec *body, int nparts)
{
	SignedContent content = {id, id_len, timestamp, timestamp_len, body, nparts};
	bool		any = false;

	for (int i = 0; i < signer->nkeys; i++)
	{
		const SigningKey *key = &signer->keys[i];

		if (key->expires_at <= now)
			continue;
		if (any)
			appendStringInfoChar(out, ' ');
		any = true;
#ifdef USE_OPENSSL
		if (key->secret.asymmetric)
			append_ed25519(key, &content, out);
		else
#endif
			append_hmac(key, &content, out);
	}
	return any;
}

void
outbox_check_secret(const char *text)
{
	char	   *public_key = outbox_public_key(text);

	if (public_key != NULL)
		pfree(public_key);
}

char *
outbox_public_key(const char *text)
{
	SecretBytes secret;
	char	   *result = NULL;

	read_secret(text, &secret);
	if (secret.asymmetric)
	{
#ifdef USE_OPENSSL
		uint8		public_key[ED25519_PUBLIC_BYTES];
		StringInfoData buffer;

		EVP_PKEY_free(ed25519_key(&secret, public_key));
		initStringInfo(&buffer);
		appendStringInfoString(&buffer, PUBLIC_KEY_PREFIX);
		append_base64(&buffer, public_key, sizeof(public_key));
		result = buffer.data;
#else
		refuse_ed25519();
#endif
	}
	explicit_bzero(&secret, sizeof(secret));
	return result;
}

/* Complete the seed of a private key by its public half. */
static void
add_public_half(SecretBytes *secret)
{
#ifdef USE_OPENSSL
	uint8		public_key[ED25519_PUBLIC_BYTES];

	secret->len = ED25519_SEED_BYTES;
	EVP_PKEY_free(ed25519_key(secret, public_key));
	memcpy(secret->bytes + ED25519_SEED_BYTES, public_key, ED25519_PUBLIC_BYTES);
	secret->len = ED25519_SEED_BYTES + ED25519_PUBLIC_BYTES;
#else
	refuse_ed25519();
#endif
}

char *
outbox_generate_secret(bool asymmetric)
{
	SecretBytes secret = {asymmetric, GENERATED_SECRET_BYTES};
	StringInfoData buffer;

	if (!pg_strong_random(secret.bytes, GENERATED_SECRET_BYTES))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	if (asymmetric)
		add_public_half(&secret);

	initStringInfo(&buffer);
	appendStringInfoString(&buffer, asymmetric ? PRIVATE_KEY_PREFIX : SECRET_PREFIX);
	append_base64(&buffer, secret.bytes, secret.len);
	explicit_bzero(&secret, sizeof(secret));
	return buffer.data;
}
