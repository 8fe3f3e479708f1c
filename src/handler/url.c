/*-------------------------------------------------------------------------
 *
 * url.c
 *		Which URLs a handler may have.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/ascii.h"
#include "handler/url.h"

#define HOST_MAX 253
#define LABEL_MAX 63

static const char form_hint[] =
"A URL looks like https://example.com/path or http://127.0.0.1:8080/.";

static bool
refuse(OutboxFault *fault, const char *what, const char *hint)
{
	return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE, hint, "invalid URL: %s", what);
}

/* Every byte is printable ASCII, and every percent sign begins an escape. */
static bool
check_characters(const char *url, OutboxFault *fault)
{
	for (const char *c = url; *c; c++)
	{
		unsigned char byte = (unsigned char) *c;

		if (byte <= ' ' || byte == 0x7f)
			return refuse(fault, "it has a space or control character", "Write a space as %20.");
		if (byte > 0x7f)
			return refuse(fault, "it has a character that is not ASCII",
						  "Percent-encode the path and write the host as xn--....");
		if (byte == '\\' || byte == '"' || byte == '<' || byte == '>')
			return refuse(fault, "it has a backslash, quote or angle bracket", "Percent-encode it.");
		if (byte == '#')
			return refuse(fault, "it has a fragment", "Leave out # and what follows: it is never sent.");
		if (byte == '%' && (outbox_hex_value(c[1]) < 0 || outbox_hex_value(c[2]) < 0))
			return refuse(fault, "a percent sign is not followed by two hexadecimal digits",
						  "Write a percent sign as %25.");
	}
	return true;
}

/* One label of a host name. */
static bool
is_label(const char *label, int len)
{
	if (len == 0 || len > LABEL_MAX || label[0] == '-' || label[len - 1] == '-')
		return false;
	for (int i = 0; i < len; i++)
	{
		if (!outbox_is_alnum(label[i]) && label[i] != '-' && label[i] != '_')
			return false;
	}
	return true;
}

/* Would somebody take this label for a number, as in 127.1, 0x7f.1 or 2130706433? */
static bool
is_number(const char *label, int len)
{
	int			i = 0;

	if (len > 2 && label[0] == '0' && (label[1] == 'x' || label[1] == 'X'))
	{
		for (i = 2; i < len && outbox_hex_value(label[i]) >= 0; i++)
			;
		return i == len;
	}
	for (; i < len && outbox_is_digit(label[i]); i++)
		;
	return i == len;
}

static bool
check_host_name(const char *host, OutboxFault *fault)
{
	struct in_addr address;
	const char *label = host;
	int			len = 0;

	if (strlen(host) > HOST_MAX)
		return refuse(fault, "its host is too long", "A host name has at most 253 characters.");
	while (*label)
	{
		len = strcspn(label, ".");
		if (!is_label(label, len))
			return refuse(fault, "its host is not a valid name", form_hint);
		if (label[len] == '\0' || label[len + 1] == '\0')
			break;
		label += len + 1;
	}
	if (is_number(label, len) && inet_pton(AF_INET, host, &address) != 1)
		return refuse(fault, "its host looks like a number but is not an IPv4 address",
					  "Write an IPv4 address as four decimal numbers, such as 192.0.2.1.");
	return true;
}

static bool
check_host(const char *authority, int len, OutboxFault *fault)
{
	struct in6_addr address;
	char	   *host;

	if (len == 0)
		return refuse(fault, "it has no host", form_hint);
	if (authority[0] != '[')
		return check_host_name(pnstrdup(authority, len), fault);

	host = pnstrdup(authority + 1, Max(len - 2, 0));
	if (authority[len - 1] != ']' || inet_pton(AF_INET6, host, &address) != 1)
		return refuse(fault, "its host is not an IPv6 address",
					  "Write an IPv6 address in brackets, such as [2001:db8::1].");
	return true;
}

static bool
check_port(const char *port, int len, OutboxFault *fault)
{
	int			number = 0;

	for (int i = 0; i < len && number <= 65535; i++)
	{
		if (!outbox_is_digit(port[i]))
			return refuse(fault, "its port is not a number", form_hint);
		number = number * 10 + (port[i] - '0');
	}
	if (number < 1 || number > 65535)
		return refuse(fault, "its port is out of range", "A port is a number from 1 to 65535.");
	return true;
}

static bool
check_authority(const char *authority, int len, OutboxFault *fault)
{
	const char *bracket = memchr(authority, ']', len);
	const char *colon;
	int			host_len = len;

	if (memchr(authority, '@', len))
		return refuse(fault, "it has a user name or password",
					  "Use the handler's option authorization, which is kept secret.");

	/* The colon of a port comes behind the bracket of an IPv6 address. */
	colon = bracket ? bracket + 1 : authority;
	colon = memchr(colon, ':', authority + len - colon);
	if (colon)
	{
		host_len = colon - authority;
		if (!check_port(colon + 1, len - host_len - 1, fault))
			return false;
	}
	return check_host(authority, host_len, fault);
}

bool
outbox_check_url(const char *url, OutboxFault *fault)
{
	const char *authority;

	if (strlen(url) > OUTBOX_URL_MAX)
		return refuse(fault, "it is too long", psprintf("At most %d bytes are allowed.", OUTBOX_URL_MAX));
	if (!check_characters(url, fault))
		return false;
	if (outbox_same_start(url, "http://", 7))
		authority = url + 7;
	else if (outbox_same_start(url, "https://", 8))
		authority = url + 8;
	else
		return refuse(fault, "it does not begin with http:// or https://", form_hint);
	return check_authority(authority, strcspn(authority, "/?"), fault);
}
