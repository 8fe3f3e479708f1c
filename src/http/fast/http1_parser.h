/*-------------------------------------------------------------------------
 *
 * http1_parser.h
 *		Reads the answer to one POST, HTTP/1.0 or HTTP/1.1, as it trickles in.
 *
 * Pure: no allocation, no I/O, no clock; the state is one small struct, and
 * nothing of the input is kept but the values of the few headers that count.
 * Works on any cut of the input, and gives the same answer for all of them.
 *
 * Strict where leniency would guess at where a message ends: a name must be a
 * token, a length must be digits and agree with any other, the only transfer
 * coding is chunked, a bare CR or a NUL in a header is an error.  Lenient
 * where libcurl is and nothing depends on it: a line may end with LF alone,
 * and a header that frames nothing may be folded.
 *
 * Process: the dispatcher; also the tests and the fuzzer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP1_PARSER_H
#define OUTBOX_HTTP1_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All header and trailer bytes of an exchange, 1xx answers included. */
#define HTTP1_MAX_HEADERS (100 * 1024)

/* The lines between the chunks of a body, apart from their sizes. */
#define HTTP1_MAX_CHUNK_LINES (4 * 1024 * 1024)

/* What is kept of a header's name and value. */
#define HTTP1_NAME_LEN 64
#define HTTP1_VALUE_LEN 256

/* What it says of an answer in another protocol.  That of HTTP/2 is what comes most. */
#define OUTBOX_NOT_HTTP "the answer is not HTTP/1.0 or HTTP/1.1; HTTP/2 is spoken over TLS only"

typedef enum Http1Result
{
	HTTP1_MORE,					/* so far so good */
	HTTP1_DONE,					/* the answer is complete */
	HTTP1_BAD					/* it is not an answer; see error */
} Http1Result;

/* Where the parts of an answer go.  Every call passes the arg of feed(). */
typedef struct Http1Sink
{
	/* A final answer begins: its status. */
	void		(*status) (void *arg, int status);

	/* One of the headers that mean something to any caller, or a wanted one; cut at HTTP1_VALUE_LEN - 1 bytes. */
	void		(*header) (void *arg, const char *name, size_t name_len,
						   const char *value, size_t value_len);

	/* A piece of the body, without its transfer coding. */
	void		(*body) (void *arg, const char *data, size_t len);

	/* Is this header of a final answer wanted, too?  NULL: none is. */
	bool		(*wants) (void *arg, const char *name, size_t name_len);
} Http1Sink;

typedef struct Http1Parser
{
	/* for the caller, once it is over */
	const char *error;			/* static; why it is BAD */
	bool		reusable;		/* DONE, and another request may follow on the connection */
	int			status;			/* of the final answer; 0 while there is none */

	/* the parser's own */
	uint8_t		state;
	uint8_t		kind;			/* of the present header */
	uint8_t		minor;			/* HTTP/1.minor */
	bool		started;		/* a byte has come */
	bool		cr;				/* the last byte was a CR */
	bool		trailer;		/* the present header stands behind the body */
	bool		leading;		/* only blanks of the value have come */
	bool		wanted;			/* the present header goes to the caller */
	bool		folds;			/* a header precedes, which this line may continue */
	bool		has_length;
	bool		has_coding;
	bool		chunked;
	bool		says_close;
	bool		says_keep_alive;
	int			place;			/* in the status line, or digits of a chunk size */
	int			code;			/* of the present answer */
	size_t		header_bytes;
	size_t		chunk_lines;	/* bytes of the lines between chunks */
	int64_t		left;			/* of the body or the chunk */
	size_t		name_len;		/* may exceed what is kept */
	size_t		value_len;		/* likewise */
	char		name[HTTP1_NAME_LEN];
	char		value[HTTP1_VALUE_LEN];
} Http1Parser;

/* Expect the answer to a request. */
extern void outbox_http1_start(Http1Parser *parser);

/*
 * Read on.  *used is how much of the input belonged to the answer, all of it
 * unless it is DONE.  Not to be called again after DONE or BAD.
 */
extern Http1Result outbox_http1_feed(Http1Parser *parser, const char *data, size_t len, size_t *used,
									 const Http1Sink *sink, void *arg);

/* The connection has ended: DONE if that is how the answer was to end, else BAD. */
extern Http1Result outbox_http1_eof(Http1Parser *parser);

#endif							/* OUTBOX_HTTP1_PARSER_H */
