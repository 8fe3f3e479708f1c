/*-------------------------------------------------------------------------
 *
 * printable_test.c
 *		What is kept of an answer: valid text, bounded, errors on one line.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "format/printable.h"

#include "tap.h"

#define ALL 2048

/* What printable.c asks the server. */
static int	encoding = PG_UTF8;

int
GetDatabaseEncoding(void)
{
	return encoding;
}

static void
test_printable(void)
{
	is_str(outbox_printable("a\r\n\tb", 5, ALL), "a\r\n\tb", "line ends and tabs stay");
	is_str(outbox_printable("a\0\x1b\x7f", 4, ALL), "a\\x00\\x1b\\x7f", "control characters are shown");
	is_str(outbox_printable("\xc3\xa9\xc3", 3, ALL), "\xc3\xa9\\xc3", "UTF-8 stays, half a character does not");
	encoding = PG_LATIN1;
	is_str(outbox_printable("\xc3\xa9", 2, ALL), "\\xc3\\xa9", "in another encoding nothing but ASCII does");
	encoding = PG_UTF8;
}

/* An escape is four times as long as what it stands for. */
static void
test_bound(void)
{
	char		bytes[100];

	memset(bytes, 1, sizeof(bytes));
	is_int(strlen(outbox_printable(bytes, sizeof(bytes), 100)), 100, "escapes count for what they are long");
	is_int(strlen(outbox_printable(bytes, sizeof(bytes), 103)), 100, "none is cut");
	is_int(strlen(outbox_error_text(bytes, sizeof(bytes), 103)), 100, "in an error neither");
	is_str(outbox_printable("a\xc3\xa9", 3, 2), "a", "no character is cut");
	is_str(outbox_error_text("a b", 3, 2), "a ", "a blank counts too");
	is_str(outbox_error_text("a b", 3, 1), "a", "and is left out where there is no room");
	is_str(outbox_printable("a", 1, 0), "", "nothing at all");
}

static void
test_error(void)
{
	static const char nginx[] =
		"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n"
		"<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx/1.22.1</center>\r\n</body>\r\n</html>\r\n";
	static const char styled[] =
		"\n<!DOCTYPE HTML><html><head><STYLE type=\"x\">p > b { color: red }</STYLE><!-- a > b --><script>if (1 < 2) x();</script>"
		"</head><body><p>No <b>such</b>\tthing &amp; more</p></body></html>";

#define error_is(text, expected, name) is_str(outbox_error_text(text, strlen(text), ALL), expected, name)
	error_is(nginx, "502 Bad Gateway 502 Bad Gateway nginx/1.22.1", "a page is what it says");
	error_is(styled, "No such thing &amp; more", "without what is not to be read");
	error_is("<html><head></head></html>", "<html><head></head></html>", "a page that says nothing stays");
	error_is("<html><p>cut <", "cut", "a page that is cut within a tag");
	error_is("<html><script>cut", "<html><script>cut", "or in what is not to be read");
	error_is("  line 1\r\n\r\n\tline 2\n", "line 1 line 2", "line ends and blanks in a row are one blank");
	error_is("{\n  \"error\": \"a < b\"\n}", "{ \"error\": \"a < b\" }", "JSON on one line");
	error_is("<error>\n<code>7</code>\n</error>", "<error> <code>7</code> </error>", "XML keeps its tags");
	error_is("", "", "nothing");
	error_is(" \n ", "", "nothing but blanks");
}

int
main(void)
{
	test_printable();
	test_bound();
	test_error();
	return tap_done();
}
