/*-------------------------------------------------------------------------
 *
 * text_array.h
 *		The elements of a text[].
 *
 * Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TEXT_ARRAY_H
#define OUTBOX_TEXT_ARRAY_H

#include "postgres.h"

/* Returns how many; texts: one for each, NULL where an element is, in the current memory context or inside the array. */
extern int	outbox_text_array(Datum array, text ***texts);

#endif							/* OUTBOX_TEXT_ARRAY_H */
