/*-------------------------------------------------------------------------
 *
 * text_array.c
 *		The elements of a text[].
 *
 * See text_array.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"

#include "common/text_array.h"

int
outbox_text_array(Datum array, text ***texts)
{
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &n);
	*texts = palloc(sizeof(text *) * n);
	for (int i = 0; i < n; i++)
		(*texts)[i] = nulls[i] ? NULL : DatumGetTextPP(elements[i]);
	return n;
}
