/*-------------------------------------------------------------------------
 *
 * http1_corpus.h
 *		Answers, odd and hostile ones, and what they are to the parser.
 *
 * Its unit test reads them in every cut; the corpus test sends them through
 * both transports, over TCP and TLS, which all have to say the same of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP1_CORPUS_H
#define OUTBOX_HTTP1_CORPUS_H

#include "http/fast/http1_parser.h"

#define OK_STATUS "HTTP/1.1 200 OK\r\n"
#define CHUNKED OK_STATUS "Transfer-Encoding: chunked\r\n\r\n"

/* A text with its length, which may hold NUL bytes. */
#define TEXT(literal) literal, sizeof(literal) - 1

typedef struct Case
{
	const char *name;
	const char *input;
	size_t		len;
	Http1Result result;
	int			status;
	const char *body;
	bool		reusable;
	size_t		rest;			/* bytes that do not belong to it */
	const char *retry_after;
	bool		unfolds;		/* another case, once its folded lines are unfolded */
} Case;

#define DONE(name, text, status, body, reusable) {name, TEXT(text), HTTP1_DONE, status, body, reusable, 0, ""}
#define BAD(name, text) {name, TEXT(text), HTTP1_BAD, -1, NULL, false, 0, ""}

static const Case cases[] = {
	/* where a body ends */
	DONE("a counted body", OK_STATUS "Content-Length: 5\r\n\r\nhello", 200, "hello", true),
	DONE("an empty body", OK_STATUS "Content-Length: 0\r\n\r\n", 200, "", true),
	DONE("a body up to the end", OK_STATUS "\r\nhello", 200, "hello", false),
	DONE("nothing up to the end", OK_STATUS "\r\n", 200, "", false),
	DONE("no reason phrase", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, "", true),
	DONE("an empty reason phrase", "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", 200, "", true),
	DONE("a reason phrase in UTF-8", "HTTP/1.1 200 \xc3\xa9t\xc3\xa9\r\nContent-Length: 0\r\n\r\n", 200, "", true),
	DONE("204 has no body", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", true),
	DONE("304 has no body", "HTTP/1.1 304 Not Modified\r\n\r\n", 304, "", true),
	DONE("204 with a length is done, and closed", "HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\n", 204, "", false),
	DONE("204 with a length of 0 is kept", "HTTP/1.1 204 x\r\nContent-Length: 0\r\n\r\n", 204, "", true),
	DONE("304 with a coding is done, and closed", "HTTP/1.1 304 x\r\nTransfer-Encoding: chunked\r\n\r\n", 304, "", false),
	DONE("205 may have a counted body", "HTTP/1.1 205 x\r\nContent-Length: 2\r\n\r\nab", 205, "ab", true),
	DONE("status 999", "HTTP/1.1 999 x\r\nContent-Length: 0\r\n\r\n", 999, "", true),
	DONE("the same length twice", OK_STATUS "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true),
	DONE("a length with leading zeros", OK_STATUS "Content-Length: 0005\r\n\r\nhello", 200, "hello", true),
	DONE("a length between blanks", OK_STATUS "Content-Length: \t 5 \t \r\n\r\nhello", 200, "hello", true),
	DONE("a length without a blank", OK_STATUS "CONTENT-LENGTH:5\r\n\r\nhello", 200, "hello", true),
	DONE("a body with NUL bytes", OK_STATUS "Content-Length: 3\r\n\r\na\0b", 200, "a", true),
	{"bytes behind a counted body", TEXT(OK_STATUS "Content-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\n\r\n"), HTTP1_DONE, 200, "ab", true, 19, ""},
	{"bytes behind a 204", TEXT("HTTP/1.1 204 x\r\n\r\nrubbish"), HTTP1_DONE, 204, "", true, 7, ""},
	BAD("a short body", OK_STATUS "Content-Length: 6\r\n\r\nhello"),
	BAD("two lengths", OK_STATUS "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
	BAD("a list of lengths", OK_STATUS "Content-Length: 5, 5\r\n\r\nhello"),
	BAD("a negative length", OK_STATUS "Content-Length: -5\r\n\r\nhello"),
	BAD("a length with a sign", OK_STATUS "Content-Length: +5\r\n\r\nhello"),
	BAD("a length in hex", OK_STATUS "Content-Length: 0x5\r\n\r\nhello"),
	BAD("a length with a unit", OK_STATUS "Content-Length: 5b\r\n\r\nhello"),
	BAD("an empty length", OK_STATUS "Content-Length:\r\n\r\nhello"),
	BAD("a length beyond 63 bits", OK_STATUS "Content-Length: 9223372036854775808\r\n\r\nhello"),
	BAD("a length beyond 64 bits", OK_STATUS "Content-Length: 18446744073709551621\r\n\r\nhello"),

	/* transfer codings */
	DONE("chunks", CHUNKED "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", 200, "hello world", true),
	DONE("no chunks", CHUNKED "0\r\n\r\n", 200, "", true),
	DONE("chunks with trailers", CHUNKED "5\r\nhello\r\n0\r\nX: y\r\nRetry-After: 7\r\n\r\n", 200, "hello", true),
	DONE("chunks with extensions", CHUNKED "5;a=b\r\nhello\r\n0 ; c = \"d\"\r\n\r\n", 200, "hello", true),
	DONE("a chunk size in capitals, with zeros", CHUNKED "00000A\r\n0123456789\r\n0\r\n\r\n", 200, "0123456789", true),
	DONE("chunks with bare LF", CHUNKED "5\nhello\n0\n\n", 200, "hello", true),
	DONE("a coding in capitals", OK_STATUS "TRANSFER-ENCODING: CHUNKED\r\n\r\n0\r\n\r\n", 200, "", true),
	DONE("a coding overrules a length", OK_STATUS "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, "hello", false),
	DONE("chunks in HTTP/1.0 close", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, "hello", false),
	DONE("identity", OK_STATUS "Transfer-Encoding: identity\r\n\r\nhello", 200, "hello", false),
	{"bytes behind the last chunk", TEXT(CHUNKED "0\r\n\r\nmore"), HTTP1_DONE, 200, "", true, 4, ""},
	BAD("an unknown coding", OK_STATUS "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
	BAD("a coding twice", OK_STATUS "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
	BAD("an empty coding", OK_STATUS "Transfer-Encoding:\r\n\r\n"),
	BAD("a chunk without a size", CHUNKED "\r\nhello\r\n0\r\n\r\n"),
	BAD("a chunk size that is no number", CHUNKED "xyz\r\nhello\r\n0\r\n\r\n"),
	BAD("a negative chunk size", CHUNKED "-5\r\nhello\r\n0\r\n\r\n"),
	BAD("a chunk size followed by letters", CHUNKED "5xyz\r\nhello\r\n0\r\n\r\n"),
	BAD("a chunk size beyond 63 bits", CHUNKED "8000000000000000\r\nhello"),
	BAD("a chunk size of 17 digits", CHUNKED "00000000000000005\r\nhello\r\n0\r\n\r\n"),
	BAD("a chunk longer than its size", CHUNKED "4\r\nhello\r\n0\r\n\r\n"),
	BAD("a chunk shorter than its size", CHUNKED "7\r\nhello\r\n0\r\n\r\n"),
	BAD("two CRs behind a chunk", CHUNKED "5\r\nhello\r\r\n0\r\n\r\n"),
	BAD("no last chunk", CHUNKED "5\r\nhello\r\n"),
	BAD("no end of the trailers", CHUNKED "5\r\nhello\r\n0\r\nX: y\r\n"),
	BAD("a trailer without a colon", CHUNKED "0\r\nrubbish\r\n\r\n"),

	/* status lines */
	DONE("HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", false),
	DONE("HTTP/1.0 that keeps alive", "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true),
	DONE("a status line with bare LF", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", 200, "hello", true),
	BAD("nothing", ""),
	BAD("HTTP/0.9", "hello"),
	BAD("a leading line break", "\r\nHTTP/1.1 200 OK\r\n\r\n"),
	BAD("lower case", "http/1.1 200 OK\r\n\r\n"),
	BAD("HTTP/2 on a connection for HTTP/1.1", "HTTP/2 200\r\n\r\n"),
	BAD("HTTP/1.2", "HTTP/1.2 200 OK\r\n\r\n"),
	BAD("HTTP/2.0", "HTTP/2.0 200 OK\r\n\r\n"),
	BAD("a status of two digits", "HTTP/1.1 20 OK\r\n\r\n"),
	BAD("a status of four digits", "HTTP/1.1 2000 OK\r\n\r\n"),
	BAD("status 099", "HTTP/1.1 099 x\r\n\r\n"),
	BAD("two blanks before the status", "HTTP/1.1  200 OK\r\n\r\n"),
	BAD("a tab before the status", "HTTP/1.1\t200 OK\r\n\r\n"),
	BAD("a status line that is cut", "HTTP/1.1 20"),
	BAD("one byte of a status line", "H"),
	BAD("a NUL in the reason", "HTTP/1.1 200 O\0K\r\n\r\n"),
	BAD("another protocol", "SSH-2.0-OpenSSH_9.2p1\r\n"),

	/* provisional answers */
	DONE("100 first", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", true),
	DONE("103 with headers, twice", "HTTP/1.1 103 x\r\nRetry-After: 5\r\nContent-Length: 9\r\nConnection: close\r\n\r\nHTTP/1.1 103 x\r\n\r\nHTTP/1.1 204 x\r\n\r\n", 204, "", true),
	DONE("1xx in HTTP/1.0, then HTTP/1.1", "HTTP/1.0 199 x\r\n\r\nHTTP/1.1 204 x\r\n\r\n", 204, "", true),
	BAD("101", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"),
	BAD("101 after 100", "HTTP/1.1 100 x\r\n\r\nHTTP/1.1 101 x\r\n\r\n"),
	BAD("only 100", "HTTP/1.1 100 Continue\r\n\r\n"),

	/* headers */
	DONE("close", OK_STATUS "Connection: close\r\nContent-Length: 0\r\n\r\n", 200, "", false),
	DONE("close in a list", OK_STATUS "Connection: x, CLOSE , y\r\nContent-Length: 0\r\n\r\n", 200, "", false),
	DONE("close in a second header", OK_STATUS "Connection: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 200, "", false),
	DONE("a word with close in it", OK_STATUS "Connection: closer, dis-close\r\nContent-Length: 0\r\n\r\n", 200, "", true),
	DONE("an empty value", OK_STATUS "X:\r\nContent-Length: 0\r\n\r\n", 200, "", true),
	DONE("values in any bytes", OK_STATUS "X: \x01\xff\xc3\x28\x7f\r\nContent-Length: 0\r\n\r\n", 200, "", true),
	DONE("a folded header", OK_STATUS "X: a\r\n b\r\n\tc\r\nContent-Length: 0\r\n\r\n", 200, "", true),
	DONE("a name longer than any we know", OK_STATUS "X-0123456789012345678901234567890123456789: y\r\nContent-Length: 0\r\n\r\n", 200, "", true),
	{"retry-after", TEXT("HTTP/1.1 503 x\r\nRETRY-AFTER: \t120 \r\nContent-Length: 0\r\n\r\n"), HTTP1_DONE, 503, "", true, 0, "120"},
	{"retry-after, folded", TEXT("HTTP/1.1 503 x\r\nRetry-After: Fri, 31 Dec 1999\r\n   23:59:59 GMT\r\nContent-Length: 0\r\n\r\n"), HTTP1_DONE, 503, "", true, 0, "Fri, 31 Dec 1999 23:59:59 GMT", true},
	{"retry-after, blank before the fold", TEXT("HTTP/1.1 503 x\r\nRetry-After:\r\n  1  2\r\nContent-Length: 0\r\n\r\n"), HTTP1_DONE, 503, "", true, 0, "1  2", true},
	{"retry-after of 1xx does not count", TEXT("HTTP/1.1 103 x\r\nRetry-After: 5\r\n\r\nHTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"), HTTP1_DONE, 503, "", true, 0, ""},
	BAD("a header without a colon", OK_STATUS "rubbish\r\n\r\n"),
	BAD("a header without a name", OK_STATUS ": x\r\n\r\n"),
	BAD("a blank before the colon", OK_STATUS "Content-Length : 5\r\n\r\nhello"),
	BAD("a blank within a name", OK_STATUS "Content Length: 5\r\n\r\nhello"),
	BAD("a NUL in a name", OK_STATUS "X\0Y: z\r\n\r\n"),
	BAD("a NUL in a value", OK_STATUS "X: y\0z\r\n\r\n"),
	BAD("a bare CR in a value", OK_STATUS "X: y\rz\r\n\r\n"),
	BAD("a CR before the line end", OK_STATUS "X: y\r\r\n\r\n"),
	BAD("a CR that begins a line", OK_STATUS "\rX: y\r\n\r\n"),
	{"the first header is a continuation", TEXT(OK_STATUS " X: y\r\n\r\n"), HTTP1_BAD, -1, NULL, false, 0, "", true},
	{"a folded length", TEXT(OK_STATUS "Content-Length:\r\n 5\r\n\r\nhello"), HTTP1_BAD, -1, NULL, false, 0, "", true},
	{"a folded coding", TEXT(OK_STATUS "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"), HTTP1_BAD, -1, NULL, false, 0, "", true},
	{"a folded connection", TEXT(OK_STATUS "Connection: a,\r\n close\r\n\r\n"), HTTP1_BAD, -1, NULL, false, 0, "", true},
	BAD("a continuation of the status line", "HTTP/1.1 200\r\n OK\r\n\r\n"),
	BAD("headers that are cut", OK_STATUS "Content-Length: 0\r\n"),
	BAD("headers that are cut within the blank line", OK_STATUS "Content-Length: 0\r\n\r"),
	BAD("only a status line", OK_STATUS),
};

#define NCASES (sizeof(cases) / sizeof(cases[0]))

#endif							/* OUTBOX_HTTP1_CORPUS_H */
