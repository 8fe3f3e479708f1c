/*-------------------------------------------------------------------------
 *
 * payload.c
 *		How long a payload is as JSON text, mostly without writing it out.
 *
 * Walking the stored form gives a lower and an upper bound: they differ only
 * by what escaping may add to strings.  Almost every payload is decided by
 * them; the text is written out only when the limit lies between the two.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

#include "stage/payload.h"

/* The longest escape of one byte is \u00XX. */
#define MAX_ESCAPE 6

typedef struct TextBounds
{
	int64		low;
	int64		high;
	int64		limit;			/* no need to go on once low is above it */
} TextBounds;

static void
add_exact(TextBounds *bounds, int64 n)
{
	bounds->low += n;
	bounds->high += n;
}

static void
add_numeric(TextBounds *bounds, const char *data)
{
	char	   *digits = DatumGetCString(DirectFunctionCall1(numeric_out, PointerGetDatum(data)));

	add_exact(bounds, strlen(digits));
	pfree(digits);
}

static void
add_container(TextBounds *bounds, JsonbContainer *container)
{
	bool		is_object = JsonContainerIsObject(container);
	int			count = JsonContainerSize(container);
	int			entries = is_object ? count * 2 : count;
	const char *base = (const char *) &container->children[entries];
	uint32		offset = 0;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();

	/* Brackets, ", " between elements and ": " after keys; a scalar has a bare pseudo-array. */
	if (!JsonContainerIsScalar(container))
		add_exact(bounds, 2 + (count > 0 ? 2 * (count - 1) : 0) + (is_object ? 2 * count : 0));

	for (int i = 0; i < entries && bounds->low <= bounds->limit; i++)
	{
		JEntry		entry = container->children[i];

		if (JBE_ISSTRING(entry))
		{
			uint32		length = JBE_OFFLENFLD(entry) - (JBE_HAS_OFF(entry) ? offset : 0);

			bounds->low += length + 2;
			bounds->high += (int64) length * MAX_ESCAPE + 2;
		}
		else if (JBE_ISNUMERIC(entry))
			add_numeric(bounds, base + INTALIGN(offset));
		else if (JBE_ISCONTAINER(entry))
			add_container(bounds, (JsonbContainer *) (base + INTALIGN(offset)));
		else
			add_exact(bounds, JBE_ISBOOL_FALSE(entry) ? 5 : 4);
		JBE_ADVANCE_OFFSET(offset, entry);
	}
}

bool
outbox_payload_exceeds(Jsonb *payload, int64 limit)
{
	TextBounds	bounds = {0, 0, limit};
	char	   *json;
	bool		exceeds;

	add_container(&bounds, &payload->root);
	if (bounds.high <= limit)
		return false;
	if (bounds.low > limit)
		return true;

	json = JsonbToCString(NULL, &payload->root, VARSIZE(payload));
	exceeds = strlen(json) > limit;
	pfree(json);
	return exceeds;
}
