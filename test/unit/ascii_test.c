/*-------------------------------------------------------------------------
 *
 * ascii_test.c
 *		Words of protocols are compared alike under every locale.
 *
 * In Turkish ISO 8859-9 the byte 0xDD is a capital I with a dot, whose lower
 * case is the ASCII letter i.  The locale is compiled into a directory of
 * this test's own, where the system has its sources.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <locale.h>
#include <unistd.h>

#include "common/ascii.h"
#include "common/fault.h"
#include "handler/url.h"
#include "policy/answer_headers.h"
#include "policy/batch_answer.h"
#include "policy/networks.h"

#include "tap.h"

#define DOTTED_I "\xdd"

/* What url.c calls; nothing here looks at what was wrong. */
bool
outbox_fault(OutboxFault *fault, int sqlstate, const char *hint, const char *format, ...)
{
	return false;
}

/* Put the process into the locale; false if it cannot be had. */
static bool
use_turkish(void)
{
	char		directory[] = "/tmp/outbox_locale_XXXXXX";
	char		command[256];
	bool		used;

	if (mkdtemp(directory) == NULL)
		return false;
	snprintf(command, sizeof(command),
			 "localedef -i tr_TR -f ISO-8859-9 %s/tr_TR.ISO-8859-9 >/dev/null 2>&1", directory);
	(void) !system(command);
	setenv("LOCPATH", directory, 1);
	used = setlocale(LC_ALL, "tr_TR.ISO-8859-9") != NULL;
	snprintf(command, sizeof(command), "rm -rf %s", directory);
	(void) !system(command);
	return used;
}

/* Every byte has one lower case, and only letters of ASCII have another than themselves. */
static void
test_bytes(const char *locale)
{
	int			wrong = 0;

	for (int c = 0; c < 256; c++)
	{
		char		text[1] = {(char) c};
		bool		digit = c >= '0' && c <= '9';
		bool		letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
		int			lower = c >= 'A' && c <= 'Z' ? c + 32 : c;

		for (int d = 1; d < 128; d++)
		{
			char		word[2] = {(char) d, '\0'};
			int			lower_d = d >= 'A' && d <= 'Z' ? d + 32 : d;

			wrong += outbox_same_word(text, 1, word) != (lower == lower_d);
		}
		wrong += outbox_is_digit(text[0]) != digit;
		wrong += outbox_is_alnum(text[0]) != (digit || letter);
		wrong += (outbox_hex_value(text[0]) >= 0) != (digit || (lower >= 'a' && lower <= 'f'));
	}
	is_int(wrong, 0, "each byte is what it is in ASCII, %s", locale);
}

static void
test_readers(const char *locale)
{
	OutboxDisposition	said;
	OutboxFault fault;
	char		error[128];
	char		networks[1024];
	pg_uuid_t	id = {{0}};
	OutboxAnswerBody body = {"x {", 3, true, false, "appl" DOTTED_I "cat" DOTTED_I "on/json"};

	ok(!outbox_parse_outcome("fa" DOTTED_I "l", &said), "no word of outbox-outcome, %s", locale);
	ok(outbox_parse_outcome("FAIL", &said), "but FAIL is one, %s", locale);
	is_int(outbox_parse_retry_after("Fr" DOTTED_I ", 09 Oct 2065 08:53:20 GMT", 0), -1, "no day, %s", locale);
	ok(outbox_parse_retry_after("FRI, 09 Oct 2065 08:53:20 GMT", 0) > 0, "but FRI is one, %s", locale);
	ok(!outbox_networks_parse("pr" DOTTED_I "vate", (OutboxNetworks *) networks, error, sizeof(error)), "no set of networks, %s", locale);
	ok(outbox_networks_parse("PRIVATE", (OutboxNetworks *) networks, error, sizeof(error)), "but PRIVATE is one, %s", locale);
	ok(outbox_check_url("HTTP://HIP.EXAMPLE/", &fault), "a URL in capitals, %s", locale);
	is_int(outbox_parse_batch_answer(&body, 1, &id, &said), OUTBOX_BATCH_ALL_OK, "no JSON by its type, %s", locale);
	body.content_type = "APPLICATION/JSON";
	is_int(outbox_parse_batch_answer(&body, 1, &id, &said), OUTBOX_BATCH_UNREADABLE, "but in capitals, %s", locale);
}

int
main(void)
{
	test_bytes("C");
	test_readers("C");
	if (!use_turkish())
		ok(true, "# SKIP the sources of locale tr_TR are not installed");
	else
	{
		is_int(pg_strncasecmp("fa" DOTTED_I "l", "fail", 4), 0, "this locale takes one byte for another");
		test_bytes("tr_TR");
		test_readers("tr_TR");
	}
	return tap_done();
}
