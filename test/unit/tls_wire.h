/*-------------------------------------------------------------------------
 *
 * tls_wire.h
 *		TLS for the hostile server, and certificates made on the spot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TLS_WIRE_H
#define OUTBOX_TLS_WIRE_H

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include "hostile_server.h"

typedef struct Identity
{
	X509	   *certificate;
	EVP_PKEY   *key;
	char		certificate_file[300];
	char		key_file[300];
} Identity;

/* Where the files of identities lie. */
static char folder[256];

static inline void
make_folder(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(folder, sizeof(folder), "%s/outbox-tls-test.XXXXXX", tmp != NULL && strlen(tmp) < 200 ? tmp : "/tmp");
	if (mkdtemp(folder) == NULL)
		abort();
}

/*
 * Certificates
 */

static inline void
add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
	X509V3_CTX	context;
	X509_EXTENSION *extension;

	X509V3_set_ctx_nodb(&context);
	X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
	extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
	if (extension == NULL)
		abort();
	X509_add_ext(certificate, extension, -1);
	X509_EXTENSION_free(extension);
}

/* A certificate signed by issuer, or by itself as an authority; and files with it and its key. */
static inline void
make_identity(Identity *identity, const char *name, const char *alternative, long from, long to, Identity *issuer)
{
	static long serial;
	FILE	   *file;
	X509_NAME  *subject;

	identity->key = EVP_EC_gen("P-256");
	identity->certificate = X509_new();
	X509_set_version(identity->certificate, 2);
	ASN1_INTEGER_set(X509_get_serialNumber(identity->certificate), ++serial);
	X509_gmtime_adj(X509_getm_notBefore(identity->certificate), from);
	X509_gmtime_adj(X509_getm_notAfter(identity->certificate), to);
	X509_set_pubkey(identity->certificate, identity->key);
	subject = X509_get_subject_name(identity->certificate);
	X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *) name, -1, -1, 0);
	X509_set_issuer_name(identity->certificate, issuer != NULL ? X509_get_subject_name(issuer->certificate) : subject);
	if (issuer == NULL)
		add_extension(identity->certificate, identity->certificate, NID_basic_constraints, "critical,CA:TRUE");
	if (alternative != NULL)
		add_extension(identity->certificate, identity->certificate, NID_subject_alt_name, alternative);
	if (X509_sign(identity->certificate, issuer != NULL ? issuer->key : identity->key, EVP_sha256()) == 0)
		abort();

	snprintf(identity->certificate_file, sizeof(identity->certificate_file), "%s/%s.crt", folder, name);
	snprintf(identity->key_file, sizeof(identity->key_file), "%s/%s.key", folder, name);
	file = fopen(identity->certificate_file, "w");
	PEM_write_X509(file, identity->certificate);
	fclose(file);
	file = fopen(identity->key_file, "w");
	PEM_write_PrivateKey(file, identity->key, NULL, NULL, 0, NULL, NULL);
	fclose(file);
}

static inline void
drop_identity(Identity *identity)
{
	unlink(identity->certificate_file);
	unlink(identity->key_file);
	X509_free(identity->certificate);
	EVP_PKEY_free(identity->key);
}

/*
 * The wire
 */

static inline void *
tls_accept(const HostileWire *wire, int fd)
{
	SSL		   *ssl = SSL_new(wire->context);

	SSL_set_fd(ssl, fd);
	if (SSL_accept(ssl) == 1)
		return ssl;
	SSL_free(ssl);
	return NULL;
}

static inline ssize_t
tls_read(void *session, char *data, size_t len)
{
	return SSL_read(session, data, len);
}

static inline ssize_t
tls_write(void *session, const char *data, size_t len)
{
	return SSL_write(session, data, len);
}

static inline void
tls_close(const HostileWire *wire, void *session)
{
	if (!wire->rude)
		SSL_shutdown(session);
	SSL_free(session);
}

/* Another ticket.  OpenSSL ignores that it could not be sent, so look for the end. */
static inline bool
tls_nag(void *session)
{
	char		byte;

	return recv(SSL_get_fd(session), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN &&
		SSL_new_session_ticket(session) == 1 && SSL_do_handshake(session) == 1;
}

static inline SSL_CTX *
tls_context(Identity *identity)
{
	SSL_CTX    *context = SSL_CTX_new(TLS_server_method());

	SSL_CTX_use_certificate(context, identity->certificate);
	SSL_CTX_use_PrivateKey(context, identity->key);
	return context;
}

/* Serve with this context on a port, which is returned. */
static inline int
tls_listen(SSL_CTX *context, bool rude)
{
	HostileWire *wire = calloc(1, sizeof(HostileWire));

	wire->accept = tls_accept;
	wire->read = tls_read;
	wire->write = tls_write;
	wire->close = tls_close;
	wire->nag = tls_nag;
	wire->context = context;
	wire->rude = rude;
	return hostile_listen(wire);
}

#endif							/* OUTBOX_TLS_WIRE_H */
