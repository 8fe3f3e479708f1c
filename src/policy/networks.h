/*-------------------------------------------------------------------------
 *
 * networks.h
 *		Networks that no request may go to: outbox.blocked_networks.
 *
 * Neither parsing nor matching allocates or raises, so that a transport can
 * ask from inside its callbacks.  Pure.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_NETWORKS_H
#define OUTBOX_NETWORKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An IPv4 network is kept as ::ffff:a.b.c.d with 96 bits added to its prefix. */
typedef struct OutboxNetwork
{
	uint8_t		address[16];
	int			prefix;
} OutboxNetwork;

typedef struct OutboxNetworks
{
	bool		private_set;	/* every network that is not public */
	int			count;
	OutboxNetwork networks[];
} OutboxNetworks;

/* How many bytes an OutboxNetworks for this text can take at most. */
extern size_t outbox_networks_size(const char *text);

/*
 * Read a comma-separated list of networks (10.0.0.0/8, 2001:db8::/32), single
 * addresses and the word private into networks, which has the room that
 * outbox_networks_size() says.  False for anything else, with the entry that
 * is wrong in error.
 */
extern bool outbox_networks_parse(const char *text, OutboxNetworks *networks,
								  char *error, size_t error_len);

/*
 * True if the address (a struct sockaddr of len bytes) is in one of the
 * networks.  An IPv6 address that stands for an IPv4 one (mapped, NAT64,
 * 6to4, Teredo, ...) is looked up by both.  Unix sockets are in no network;
 * an address of a family that is not known is in every one.
 */
extern bool outbox_networks_contain(const OutboxNetworks *networks,
									const void *sockaddr, size_t len);

#endif							/* OUTBOX_NETWORKS_H */
