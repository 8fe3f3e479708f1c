/*-------------------------------------------------------------------------
 *
 * http2_server.h
 *		A receiver of HTTP/2 over TLS that ends streams and connections as it
 *		is told by the bodies of its requests.
 *
 * It reads frames, not headers, and answers with a status only.  A connection
 * answers nothing before so many requests have come on it, the first so many
 * as http2.gather says, and later ones one.  One thread serves each.
 *
 *		good	200
 *		poison	ends the connection, as http2.end says
 *		reset	the stream is reset for an error
 *		silent	nothing
 *		unread	204, and the stream is closed, while the rest of its body is awaited
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP2_SERVER_H
#define OUTBOX_HTTP2_SERVER_H

#include "tls_wire.h"

#define HTTP2_STREAMS 256

typedef enum Http2End
{
	END_CALM,					/* GOAWAY: enhance your calm */
	END_SILENTLY,
	END_RESET,					/* the connection is reset */
	END_GRACEFUL				/* GOAWAY without an error behind the first stream, which is answered */
} Http2End;

static struct
{
	atomic_int	gather;			/* requests that the next connection gathers */
	atomic_int	end;			/* a Http2End */
	atomic_int	connections;
	atomic_int	requests;
} http2 = {.gather = 1};

typedef struct Http2Peer
{
	SSL		   *ssl;
	int			fd;
	int			gather;
	int			nwhole;			/* requests that have come whole */
	int			last;			/* the highest stream so far */
	char		bodies[HTTP2_STREAMS][16];	/* how they begin, by stream */
	bool		whole[HTTP2_STREAMS];
} Http2Peer;

static inline bool
http2_read(Http2Peer *peer, void *data, int len)
{
	char	   *at = data;

	while (len > 0)
	{
		int			n = SSL_read(peer->ssl, at, len);

		if (n <= 0)
			return false;
		at += n;
		len -= n;
	}
	return true;
}

static inline bool
http2_say(Http2Peer *peer, int type, int flags, int stream, const void *payload, int len)
{
	unsigned char frame[64] = {0, len >> 8, len, type, flags, stream >> 24, stream >> 16, stream >> 8, stream};

	if (len > 0)
		memcpy(frame + 9, payload, len);
	return SSL_write(peer->ssl, frame, 9 + len) > 0;
}

static inline bool
http2_goaway(Http2Peer *peer, int last, int error)
{
	unsigned char payload[8] = {last >> 24, last >> 16, last >> 8, last, 0, 0, 0, error};

	return http2_say(peer, 7, 0, 0, payload, 8);
}

/* Act on the requests that are there.  False: the connection ends. */
static inline bool
http2_answer(Http2Peer *peer)
{
	static const unsigned char calm[4] = {0, 0, 0, 11};
	struct linger abort_it = {1, 0};
	bool		poisoned = false;

	for (int i = 1; i < HTTP2_STREAMS; i++)
		poisoned = poisoned || (peer->whole[i] && strncmp(peer->bodies[i], "poison", 6) == 0);
	if (poisoned && http2.end == END_CALM)
		http2_goaway(peer, peer->last, 11);
	if (poisoned && http2.end == END_RESET)
		setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &abort_it, sizeof(abort_it));
	if (poisoned)
		return false;
	if (http2.end == END_GRACEFUL && peer->nwhole > 1)
	{
		http2_goaway(peer, 1, 0);
		http2_say(peer, 1, 5, 1, "\x88", 1);
		return false;
	}
	for (int i = 1; i < HTTP2_STREAMS; i++)
	{
		if (!peer->whole[i])
			continue;
		peer->whole[i] = false;
		if (strncmp(peer->bodies[i], "silent", 6) == 0)
			continue;
		if (strncmp(peer->bodies[i], "reset", 5) == 0)
			http2_say(peer, 3, 0, i, calm, 4);
		else
			http2_say(peer, 1, 5, i, "\x88", 1);
	}
	return true;
}

/* One frame.  False: the connection ends. */
static inline bool
http2_hear(Http2Peer *peer)
{
	unsigned char head[9];
	static const unsigned char zero[4];
	char		payload[16384 + 256];
	int			len,
				type,
				stream;

	if (!http2_read(peer, head, 9))
		return false;
	len = head[0] << 16 | head[1] << 8 | head[2];
	type = head[3];
	stream = head[7] << 8 | head[8];
	if (len > (int) sizeof(payload) || stream >= HTTP2_STREAMS || !http2_read(peer, payload, len))
		return false;
	if (type == 4 && (head[4] & 1) == 0)
		http2_say(peer, 4, 1, 0, zero, 0);
	if (type == 6 && (head[4] & 1) == 0)
		http2_say(peer, 6, 1, 0, payload, 8);
	if (type == 1 && stream > peer->last)
		peer->last = stream;
	if (type != 0)
		return true;
	if (len > 0)
	{
		/* The connection may always carry more; its streams no more than 64 kB each. */
		unsigned char increment[4] = {0, len >> 16, len >> 8, len};

		http2_say(peer, 8, 0, 0, increment, 4);
	}
	if (peer->bodies[stream][0] == '\0')
		memcpy(peer->bodies[stream], payload, len < 15 ? len : 15);

	if (strncmp(peer->bodies[stream], "unread", 6) == 0)
	{
		/* As nginx does where it says "return 204".  Once is enough; what comes behind it is dropped. */
		if (peer->whole[stream])
			return true;
		peer->whole[stream] = true;
		http2.requests++;
		return http2_say(peer, 1, 5, stream, "\x89", 1) && http2_say(peer, 3, 0, stream, zero, 4);
	}
	if ((head[4] & 1) == 0)
		return true;
	peer->whole[stream] = true;
	http2.requests++;
	return ++peer->nwhole < peer->gather || http2_answer(peer);
}

static inline int
http2_choose(SSL *ssl, const unsigned char **out, unsigned char *out_len,
			 const unsigned char *in, unsigned in_len, void *arg)
{
	*out = (const unsigned char *) "h2";
	*out_len = 2;
	return SSL_TLSEXT_ERR_OK;
}

static inline void *
http2_accept(const HostileWire *wire, int fd)
{
	Http2Peer  *peer = calloc(1, sizeof(Http2Peer));
	char		preface[24];

	peer->fd = fd;
	peer->ssl = SSL_new(wire->context);
	peer->gather = atomic_exchange(&http2.gather, 1);
	http2.connections++;
	SSL_set_fd(peer->ssl, fd);
	if (SSL_accept(peer->ssl) == 1 && http2_read(peer, preface, 24) && http2_say(peer, 4, 0, 0, NULL, 0))
		while (http2_hear(peer))
		{
		}
	if (http2.end != END_RESET)
		SSL_shutdown(peer->ssl);
	SSL_free(peer->ssl);
	free(peer);
	return NULL;
}

/* Serve on a port, which is returned. */
static inline int
http2_listen(Identity *identity)
{
	HostileWire *wire = calloc(1, sizeof(HostileWire));
	SSL_CTX    *context = tls_context(identity);

	SSL_CTX_set_alpn_select_cb(context, http2_choose, NULL);
	wire->accept = http2_accept;
	wire->context = context;
	return hostile_listen(wire);
}

#endif							/* OUTBOX_HTTP2_SERVER_H */
