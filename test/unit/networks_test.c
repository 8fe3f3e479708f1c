/*-------------------------------------------------------------------------
 *
 * networks_test.c
 *		Which addresses outbox.blocked_networks refuses.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "policy/networks.h"

#include "tap.h"

static OutboxNetworks *
parse(const char *text)
{
	OutboxNetworks *networks = malloc(outbox_networks_size(text));
	char		error[128];

	if (!outbox_networks_parse(text, networks, error, sizeof(error)))
	{
		free(networks);
		return NULL;
	}
	return networks;
}

static bool
contains(const OutboxNetworks *networks, const char *address)
{
	struct sockaddr_in v4 = {0};
	struct sockaddr_in6 v6 = {0};

	v4.sin_family = AF_INET;
	if (inet_pton(AF_INET, address, &v4.sin_addr) == 1)
		return outbox_networks_contain(networks, &v4, sizeof(v4));
	v6.sin6_family = AF_INET6;
	if (inet_pton(AF_INET6, address, &v6.sin6_addr) == 1)
		return outbox_networks_contain(networks, &v6, sizeof(v6));
	printf("Bail out! %s is no address\n", address);
	exit(1);
}

static void
test_private(void)
{
	static const char *const inside[] = {
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255",
		"127.0.0.1", "127.255.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255",
		"192.0.0.1", "192.0.2.1", "192.168.0.1", "192.168.255.255", "198.18.0.1",
		"198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.255",
		"240.0.0.1", "255.255.255.255",
		"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.1.1.1", "::ffff:8.8.8.8",
		"64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "100::1", "2001::1",
		"2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "fc00::1", "fd12:3456::1",
		"fe80::1", "febf::1", "fec0::1", "ff02::1", "ff0e::1"
	};
	static const char *const outside[] = {
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
		"126.255.255.255", "128.0.0.1", "169.253.255.255", "169.255.0.0", "172.15.255.255",
		"172.32.0.0", "192.0.1.1", "192.167.255.255", "192.169.0.0", "198.17.255.255",
		"198.20.0.0", "223.255.255.255",
		"2606:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888", "2003::1",
		"64:ff9a::1", "fbff::1"
	};
	OutboxNetworks *networks = parse(" Private ");

	for (int i = 0; i < (int) lengthof(inside); i++)
		ok(contains(networks, inside[i]), "private: %s", inside[i]);
	for (int i = 0; i < (int) lengthof(outside); i++)
		ok(!contains(networks, outside[i]), "public: %s", outside[i]);
	free(networks);
}

static void
test_lists(void)
{
	OutboxNetworks *networks = parse("8.8.0.0/16, 2a00:1450::/32\t,\n1.2.3.4,2606:4700::1111/128");

	ok(contains(networks, "8.8.255.1"), "an IPv4 network");
	ok(!contains(networks, "8.9.0.1"), "and not its neighbour");
	ok(contains(networks, "1.2.3.4"), "a single address");
	ok(!contains(networks, "1.2.3.5"), "and not its neighbour");
	ok(contains(networks, "2a00:1450:ffff::1"), "an IPv6 network");
	ok(!contains(networks, "2a00:1451::1"), "and not its neighbour");
	ok(contains(networks, "2606:4700::1111"), "a single IPv6 address");
	ok(!contains(networks, "127.0.0.1"), "private was not asked for");
	ok(!contains(networks, "::ffff:127.0.0.1"), "not for mapped ones either");
	ok(contains(networks, "::ffff:8.8.8.8"), "mapped into the IPv4 network");
	ok(contains(networks, "::8.8.8.8"), "compatible with it");
	ok(contains(networks, "64:ff9b::8.8.8.8"), "NAT64 to it");
	ok(contains(networks, "64:ff9b:1::8.8.8.8"), "local NAT64 to it");
	ok(contains(networks, "64:ff9b:1:808:8:800::"), "local NAT64 with 48 bits of prefix to it");
	ok(!contains(networks, "64:ff9b::9.9.9.9"), "NAT64 to elsewhere");
	ok(contains(networks, "2002:808:808::1"), "6to4 to it");
	ok(!contains(networks, "2002:909:909::1"), "6to4 to elsewhere");
	ok(contains(networks, "2001:0:808:808::1"), "Teredo by way of it");
	ok(contains(networks, "2001:0:909:909:0:0:f7f7:f7f7"), "Teredo to it");
	ok(contains(networks, "2a01::5efe:8.8.1.1"), "ISATAP to it");
	ok(contains(networks, "2a01::200:5efe:808:101"), "ISATAP, universal");
	free(networks);

	networks = parse("0.0.0.0/0");
	ok(contains(networks, "9.9.9.9"), "all of IPv4");
	ok(contains(networks, "::ffff:9.9.9.9"), "also when mapped");
	ok(!contains(networks, "2606:4700::1"), "but not IPv6");
	free(networks);
	networks = parse("::/0");
	ok(contains(networks, "2606:4700::1"), "all of IPv6");
	ok(!contains(networks, "9.9.9.9"), "is not IPv4");
	ok(contains(networks, "::ffff:9.9.9.9"), "unless it comes as IPv6");
	free(networks);
	networks = parse("9.0.0.0/7");
	ok(networks == NULL, "a bit right of the prefix");
	networks = parse("8.0.0.0/7");
	ok(contains(networks, "9.1.1.1") && !contains(networks, "10.1.1.1"), "a prefix within a byte");
	free(networks);
}

static void
test_other_addresses(void)
{
	OutboxNetworks *networks = parse("");
	struct sockaddr_un local = {.sun_family = AF_UNIX};
	struct sockaddr unknown = {.sa_family = 250};
	struct sockaddr_in v4 = {.sin_family = AF_INET};

	ok(!contains(networks, "127.0.0.1"), "an empty list blocks nothing");
	ok(!outbox_networks_contain(networks, &unknown, sizeof(unknown)), "of whatever family");
	free(networks);
	networks = parse("  ");
	ok(networks != NULL && networks->count == 0, "a blank list is empty");
	free(networks);

	networks = parse("private");
	ok(!outbox_networks_contain(networks, &local, sizeof(local)), "unix sockets are in no network");
	ok(outbox_networks_contain(networks, &unknown, sizeof(unknown)), "an unknown family is refused");
	ok(outbox_networks_contain(networks, &v4, 4), "so is an address cut short");
	ok(outbox_networks_contain(networks, &v4, 0), "so is none");
	free(networks);
}

static void
test_errors(void)
{
	static const char *const wrong[] = {
		",", "10.0.0.0/8,", ",10.0.0.0/8", "10.0.0.0/8,,private", "10.0.0.0/33", "10.0.0.0/-1",
		"10.0.0.0/", "10.0.0.0/8x", "10.0.0.0/0008", "10.0.0.1/8", "10.0.0", "010.0.0.0/8x",
		"public", "localhost", "2001:db8::/129", "2001:db8::1/32", ":::/0", "10.0.0.0 /8",
		"fe80::1%eth0", "10.0.0.0/8 private", "::ffff:10.0.0.0/8"
	};
	char		text[200];
	char		error[128] = "";
	OutboxNetworks *networks = malloc(outbox_networks_size("10.0.0.0/8, nonsense ,private"));

	for (int i = 0; i < (int) lengthof(wrong); i++)
		ok(parse(wrong[i]) == NULL, "refused: \"%s\"", wrong[i]);
	ok(!outbox_networks_parse("10.0.0.0/8, nonsense ,private", networks, error, sizeof(error)),
	   "a wrong entry");
	is_str(error, "nonsense", "is named");
	free(networks);

	memset(text, '1', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	ok(parse(text) == NULL, "a very long entry");
}

int
main(void)
{
	test_private();
	test_lists();
	test_other_addresses();
	test_errors();
	return tap_done();
}
