/*-------------------------------------------------------------------------
 *
 * blocked_networks.h
 *		The setting outbox.blocked_networks, parsed.
 *
 * Hooks for guc.c, and the networks as they are now for the dispatcher.  Written
 * only by the GUC machinery.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_BLOCKED_NETWORKS_H
#define OUTBOX_BLOCKED_NETWORKS_H

#include "utils/guc.h"

#include "policy/networks.h"

/* An HttpAddressFilter that always judges by the setting in force; arg is not used. */
extern bool outbox_address_is_blocked(void *arg, const void *sockaddr, size_t len);

extern bool outbox_check_blocked_networks(char **newval, void **extra, GucSource source);
extern void outbox_assign_blocked_networks(const char *newval, void *extra);

#endif							/* OUTBOX_BLOCKED_NETWORKS_H */
