/*-------------------------------------------------------------------------
 *
 * json_text.h
 *		A jsonb value, or a string, as JSON text, written piece by piece.
 *
 * The text is what jsonb's own output function gives, to the byte.  That one
 * cannot be stopped, and a payload of 64 MB takes it the better part of a
 * second; this one gives up control whenever as much has been written as it
 * was asked for.
 *
 * Process: the dispatcher.  No catalog is looked at, so no transaction is
 * needed.  Raises when memory runs out or the text becomes longer than a
 * StringInfo can hold.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_JSON_TEXT_H
#define OUTBOX_JSON_TEXT_H

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

/* Private; lies wherever its owner likes. */
typedef struct OutboxJsonText
{
	JsonbIterator *iterator;
	bool		is_scalar;		/* not an array, although jsonb keeps it in one */
	bool		is_first;		/* nothing has been written in the innermost array or object */
	const char *string;			/* the rest of one that is being written, NULL: none is */
	int			string_len;
	const char *behind;			/* what follows it */
	bool		is_unquoted;	/* a string by itself, before its first quote */
} OutboxJsonText;

/*
 * Begin with a value, which must stay until it is written.  What is allocated
 * meanwhile lies in the memory context that is current in each call, which
 * has to be the same one.
 */
extern void outbox_json_text_begin(OutboxJsonText *text, const Jsonb *value);

/* Begin with what becomes a string by itself. */
extern void outbox_json_text_begin_string(OutboxJsonText *text, const char *string, int len);

/* Append about max bytes more to out.  True when that was the rest. */
extern bool outbox_json_text_write(OutboxJsonText *text, StringInfo out, int max);

/* How long a string is as JSON text, quotes and escapes included. */
extern size_t outbox_json_string_length(const char *string, size_t len);

#endif							/* OUTBOX_JSON_TEXT_H */
