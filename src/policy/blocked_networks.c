/*-------------------------------------------------------------------------
 *
 * blocked_networks.c
 *		The setting outbox.blocked_networks, parsed.
 *
 * Promises: see blocked_networks.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "policy/blocked_networks.h"

static const OutboxNetworks *networks_now = NULL;

bool
outbox_check_blocked_networks(char **newval, void **extra, GucSource source)
{
	OutboxNetworks *networks;
	char		entry[128];

	networks = outbox_guc_malloc(outbox_networks_size(*newval));
	if (networks == NULL)
		return false;
	if (!outbox_networks_parse(*newval, networks, entry, sizeof(entry)))
	{
		outbox_guc_free(networks);
		GUC_check_errdetail("\"%s\" is not a network.", entry);
		GUC_check_errhint("Separate networks such as 10.0.0.0/8 or 2001:db8::/32 by commas; "
						  "no bit right of the prefix may be set; "
						  "private stands for every network that is not public.");
		return false;
	}
	*extra = networks;
	return true;
}

void
outbox_assign_blocked_networks(const char *newval, void *extra)
{
	networks_now = extra;
}

bool
outbox_address_is_blocked(void *arg, const void *sockaddr, size_t len)
{
	return networks_now != NULL && outbox_networks_contain(networks_now, sockaddr, len);
}
