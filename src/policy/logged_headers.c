/*-------------------------------------------------------------------------
 *
 * logged_headers.c
 *		The setting outbox.log_response_headers, parsed.
 *
 * Promises: see logged_headers.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/ascii.h"
#include "compat.h"
#include "policy/logged_headers.h"

typedef struct LoggedHeaders
{
	int			n;
	char		names[OUTBOX_MAX_LOGGED_HEADERS][OUTBOX_LOGGED_HEADER_LEN];
} LoggedHeaders;

static const LoggedHeaders *headers_now = NULL;

static bool
is_named(const LoggedHeaders *headers, const char *name)
{
	for (int i = 0; i < headers->n; i++)
	{
		if (strcmp(headers->names[i], name) == 0)
			return true;
	}
	return false;
}

/* Take one name, which need not be new.  False if it cannot be that of a header. */
static bool
add_name(LoggedHeaders *headers, const char *start, size_t len)
{
	char		name[OUTBOX_LOGGED_HEADER_LEN];

	if (len == 0 || len >= sizeof(name))
		return false;
	for (size_t i = 0; i < len; i++)
	{
		if (!outbox_is_token_char(start[i]))
			return false;
		name[i] = outbox_lower(start[i]);
	}
	name[len] = '\0';
	if (is_named(headers, name))
		return true;
	if (headers->n == OUTBOX_MAX_LOGGED_HEADERS)
		return false;
	strlcpy(headers->names[headers->n++], name, sizeof(name));
	return true;
}

/* False, with the entry that will not do, if the list is not one of names. */
static bool
parse(const char *list, LoggedHeaders *headers, const char **entry, size_t *entry_len)
{
	static const char *const blanks = " \t\n\r";

	list += strspn(list, blanks);
	if (*list == '\0')
		return true;
	for (;;)
	{
		size_t		len = strcspn(list, ",");
		const char *end = list + len;

		*entry = list + strspn(list, blanks);
		*entry_len = *entry < end ? end - *entry : 0;
		while (*entry_len > 0 && strchr(blanks, (*entry)[*entry_len - 1]) != NULL)
			(*entry_len)--;
		if (!add_name(headers, *entry, *entry_len))
			return false;
		if (*end == '\0')
			return true;
		list = end + 1;
	}
}

bool
outbox_check_logged_headers(char **newval, void **extra, GucSource source)
{
	LoggedHeaders *headers = outbox_guc_malloc(sizeof(LoggedHeaders));
	const char *entry;
	size_t		len;

	if (headers == NULL)
		return false;
	headers->n = 0;
	if (!parse(*newval, headers, &entry, &len))
	{
		if (headers->n == OUTBOX_MAX_LOGGED_HEADERS)
			GUC_check_errdetail("At most %d headers can be named.", OUTBOX_MAX_LOGGED_HEADERS);
		else
			GUC_check_errdetail("\"%.*s\" is not the name of a header.", (int) Min(len, OUTBOX_LOGGED_HEADER_LEN), entry);
		GUC_check_errhint("Separate names such as x-request-id by commas; each has at most %d bytes.", OUTBOX_LOGGED_HEADER_LEN - 1);
		outbox_guc_free(headers);
		return false;
	}
	*extra = headers;
	return true;
}

void
outbox_assign_logged_headers(const char *newval, void *extra)
{
	headers_now = extra;
}

int
outbox_logged_headers_copy(const char *const **names)
{
	const char **copy;

	*names = NULL;
	if (headers_now == NULL || headers_now->n == 0)
		return 0;
	copy = palloc(sizeof(char *) * headers_now->n);
	for (int i = 0; i < headers_now->n; i++)
		copy[i] = pstrdup(headers_now->names[i]);
	*names = copy;
	return headers_now->n;
}
