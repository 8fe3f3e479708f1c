/*-------------------------------------------------------------------------
 *
 * networks.c
 *		Networks that no request may go to.
 *
 * Promises: see networks.h.  Pure.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/ascii.h"
#include "policy/networks.h"

#define PRIVATE_SET "private"
#define MAX_ENTRY_LEN 80
#define MAPPED_BITS 96

static const uint8_t mapped_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/* An IPv4 network by its first bytes, an IPv6 one by its first groups; the rest is zero. */
#define V4(a, b, c, prefix) \
	{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c}, MAPPED_BITS + (prefix)}
#define V6(a, b, c, prefix) \
	{{(a) >> 8, (a) & 0xff, (b) >> 8, (b) & 0xff, (c) >> 8, (c) & 0xff}, prefix}

/* Ranges whose addresses stand for IPv4 ones. */
static const OutboxNetwork mapped = V4(0, 0, 0, 0);
static const OutboxNetwork compatible = V6(0, 0, 0, 96);
static const OutboxNetwork nat64 = V6(0x64, 0xff9b, 0, 96);
static const OutboxNetwork nat64_local = V6(0x64, 0xff9b, 1, 48);
static const OutboxNetwork six_to_four = V6(0x2002, 0, 0, 16);
static const OutboxNetwork teredo = V6(0x2001, 0, 0, 32);

/*
 * What the word private stands for: the special-purpose registries of RFC
 * 6890 and its successors, as far as they are not globally reachable, and
 * the IPv6 ranges above, which would otherwise lead around IPv4 entries.
 * (Mapped addresses are in the set too, but only when they come as IPv6.)
 */
static const OutboxNetwork private_networks[] = {
	V4(0, 0, 0, 8),				/* unspecified, this network */
	V4(10, 0, 0, 8),			/* RFC 1918 */
	V4(100, 64, 0, 10),			/* CGNAT */
	V4(127, 0, 0, 8),			/* loopback */
	V4(169, 254, 0, 16),		/* link-local: also where clouds keep their metadata */
	V4(172, 16, 0, 12),			/* RFC 1918 */
	V4(192, 0, 0, 24),			/* protocol assignments */
	V4(192, 0, 2, 24),			/* documentation */
	V4(192, 88, 99, 24),		/* 6to4 relays */
	V4(192, 168, 0, 16),		/* RFC 1918 */
	V4(198, 18, 0, 15),			/* benchmarks */
	V4(198, 51, 100, 24),		/* documentation */
	V4(203, 0, 113, 24),		/* documentation */
	V4(224, 0, 0, 4),			/* multicast */
	V4(240, 0, 0, 4),			/* reserved, broadcast */
	V6(0, 0, 0, 96),			/* unspecified, loopback, IPv4-compatible */
	V6(0x64, 0xff9b, 0, 96),	/* NAT64 */
	V6(0x64, 0xff9b, 1, 48),	/* NAT64, local */
	V6(0x100, 0, 0, 64),		/* discard */
	V6(0x2001, 0, 0, 23),		/* protocol assignments, Teredo among them */
	V6(0x2001, 0xdb8, 0, 32),	/* documentation */
	V6(0x2002, 0, 0, 16),		/* 6to4 */
	V6(0x3fff, 0, 0, 20),		/* documentation */
	V6(0x5f00, 0, 0, 16),		/* segment routing */
	V6(0xfc00, 0, 0, 7),		/* ULA */
	V6(0xfe80, 0, 0, 10),		/* link-local */
	V6(0xfec0, 0, 0, 10),		/* site-local, long ago */
	V6(0xff00, 0, 0, 8)			/* multicast */
};

/* Text of an address, "a.b.c.d" or IPv6, as 16 bytes; -1 if it is none, else the bits before it. */
static int
read_address(const char *text, uint8_t *address)
{
	memcpy(address, mapped_prefix, sizeof(mapped_prefix));
	if (inet_pton(AF_INET, text, address + sizeof(mapped_prefix)) == 1)
		return MAPPED_BITS;
	if (inet_pton(AF_INET6, text, address) == 1)
		return 0;
	return -1;
}

static bool
shares_prefix(const uint8_t *a, const uint8_t *b, int prefix)
{
	int			bytes = prefix / 8;
	int			bits = prefix % 8;

	return memcmp(a, b, bytes) == 0 &&
		(bits == 0 || (a[bytes] >> (8 - bits)) == (b[bytes] >> (8 - bits)));
}

/* No bit right of the prefix is set: it is a network's address. */
static bool
is_network_address(const uint8_t *address, int prefix)
{
	for (int bit = prefix; bit < 128; bit++)
	{
		if (address[bit / 8] & (0x80 >> (bit % 8)))
			return false;
	}
	return true;
}

/* A whole number of at most three digits, and no more than max; -1 otherwise. */
static int
read_prefix(const char *text, int max)
{
	size_t		len = strlen(text);

	if (len == 0 || len > 3 || strspn(text, "0123456789") != len || atoi(text) > max)
		return -1;
	return atoi(text);
}

static bool
read_network(char *entry, OutboxNetwork *network)
{
	char	   *slash = strchr(entry, '/');
	int			before;
	int			prefix;

	if (slash != NULL)
		*slash = '\0';
	before = read_address(entry, network->address);
	if (before < 0)
		return false;
	prefix = slash != NULL ? read_prefix(slash + 1, 128 - before) : 128 - before;
	if (prefix < 0)
		return false;
	network->prefix = before + prefix;
	return is_network_address(network->address, network->prefix);
}

size_t
outbox_networks_size(const char *text)
{
	size_t		entries = 1;

	for (const char *c = text; *c != '\0'; c++)
		entries += *c == ',' ? 1 : 0;
	return offsetof(OutboxNetworks, networks) + entries * sizeof(OutboxNetwork);
}

/* One entry of the list, without blanks around it; false if it is none. */
static bool
read_entry(const char *start, size_t len, OutboxNetworks *networks)
{
	char		entry[MAX_ENTRY_LEN + 1];

	if (len == 0 || len > MAX_ENTRY_LEN)
		return false;
	memcpy(entry, start, len);
	entry[len] = '\0';
	if (outbox_same_word(entry, len, PRIVATE_SET))
	{
		networks->private_set = true;
		return true;
	}
	return read_network(entry, &networks->networks[networks->count++]);
}

static bool
is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool
outbox_networks_parse(const char *text, OutboxNetworks *networks, char *error, size_t error_len)
{
	const char *pos = text;

	networks->private_set = false;
	networks->count = 0;
	while (is_blank(*pos))
		pos++;
	if (*pos == '\0')
		return true;

	for (;;)
	{
		size_t		len = strcspn(pos, ",");
		const char *start = pos;
		const char *end = pos + len;

		while (start < end && is_blank(*start))
			start++;
		while (end > start && is_blank(end[-1]))
			end--;
		if (!read_entry(start, end - start, networks))
		{
			snprintf(error, error_len, "%.*s", (int) Min(end - start, MAX_ENTRY_LEN), start);
			return false;
		}
		if (pos[len] == '\0')
			return true;
		pos += len + 1;
	}
}

static bool
is_in(const uint8_t *address, const OutboxNetwork *network)
{
	return shares_prefix(address, network->address, network->prefix);
}

/*
 * Is the address in one of the networks of at least so many bits?  IPv4
 * networks have MAPPED_BITS or more, and an IPv4 address is in no IPv6
 * network, not even in ::/0.
 */
static bool
contains_bytes(const OutboxNetworks *networks, const uint8_t *address, int min_prefix)
{
	for (int i = 0; i < networks->count; i++)
	{
		if (networks->networks[i].prefix >= min_prefix && is_in(address, &networks->networks[i]))
			return true;
	}
	for (int i = 0; networks->private_set && i < (int) lengthof(private_networks); i++)
	{
		if (is_in(address, &private_networks[i]))
			return true;
	}
	return false;
}

/* Is the IPv4 address in these four bytes in one of the networks? */
static bool
contains_v4(const OutboxNetworks *networks, const uint8_t *bytes)
{
	uint8_t		address[16];

	memcpy(address, mapped_prefix, sizeof(mapped_prefix));
	memcpy(address + sizeof(mapped_prefix), bytes, 4);
	return contains_bytes(networks, address, MAPPED_BITS);
}

/*
 * Look an IPv6 address up by every IPv4 address that it may stand for: a
 * request to it would end up there.
 */
static bool
contains_translated(const OutboxNetworks *networks, const uint8_t *address)
{
	/* IPv4-compatible, NAT64 and ISATAP: the last four bytes. */
	if ((is_in(address, &compatible) || is_in(address, &nat64) || is_in(address, &nat64_local) ||
		 memcmp(address + 8, "\0\0\x5e\xfe", 4) == 0 ||
		 memcmp(address + 8, "\x02\0\x5e\xfe", 4) == 0) &&
		contains_v4(networks, address + 12))
		return true;

	/* NAT64 with a prefix of 48 bits has them around byte 8 (RFC 6052). */
	if (is_in(address, &nat64_local))
	{
		uint8_t		around[4] = {address[6], address[7], address[9], address[10]};

		if (contains_v4(networks, around))
			return true;
	}

	if (is_in(address, &six_to_four) && contains_v4(networks, address + 2))
		return true;

	/* Teredo: the server's address, and the client's with every bit turned. */
	if (is_in(address, &teredo))
	{
		uint8_t		client[4];

		for (int i = 0; i < 4; i++)
			client[i] = (uint8_t) ~address[12 + i];
		return contains_v4(networks, address + 4) || contains_v4(networks, client);
	}
	return false;
}

static bool
contains_v6(const OutboxNetworks *networks, const uint8_t *address)
{
	if (is_in(address, &mapped))
		return networks->private_set || contains_bytes(networks, address, 0);
	return contains_bytes(networks, address, 0) || contains_translated(networks, address);
}

bool
outbox_networks_contain(const OutboxNetworks *networks, const void *sockaddr, size_t len)
{
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
	sa_family_t family;

	if (networks->count == 0 && !networks->private_set)
		return false;
	if (len < offsetof(struct sockaddr, sa_family) + sizeof(family))
		return true;
	memcpy(&family, (const char *) sockaddr + offsetof(struct sockaddr, sa_family),
		   sizeof(family));

	if (family == AF_UNIX)
		return false;
	if (family == AF_INET && len >= sizeof(v4))
	{
		memcpy(&v4, sockaddr, sizeof(v4));
		return contains_v4(networks, (const uint8_t *) &v4.sin_addr);
	}
	if (family == AF_INET6 && len >= sizeof(v6))
	{
		memcpy(&v6, sockaddr, sizeof(v6));
		return contains_v6(networks, v6.sin6_addr.s6_addr);
	}
	return true;
}
