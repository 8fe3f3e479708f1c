/*-------------------------------------------------------------------------
 *
 * delivery.c
 *		The deliveries that the dispatcher has in memory.
 *
 * See delivery.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "dispatch/delivery.h"

typedef struct DeliveryKey
{
	pg_uuid_t	id;
	int32		handler_id;
} DeliveryKey;

typedef struct DeliveryEntry
{
	DeliveryKey key;
	OutboxDelivery *delivery;
} DeliveryEntry;

static HTAB *deliveries = NULL;
static size_t deliveries_bytes = 0;

void
outbox_deliveries_init(MemoryContext context)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.hcxt = context;
	ctl.keysize = sizeof(DeliveryKey);
	ctl.entrysize = sizeof(DeliveryEntry);
	deliveries = hash_create("outbox deliveries", 1024, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static DeliveryKey
delivery_key(const pg_uuid_t *id, int32 handler_id)
{
	DeliveryKey key;

	memset(&key, 0, sizeof(key));
	key.id = *id;
	key.handler_id = handler_id;
	return key;
}

OutboxDelivery *
outbox_delivery_find(const pg_uuid_t *id, int32 handler_id)
{
	DeliveryKey key = delivery_key(id, handler_id);
	DeliveryEntry *entry = hash_search(deliveries, &key, HASH_FIND, NULL);

	return entry ? entry->delivery : NULL;
}

void
outbox_delivery_add(OutboxDelivery *delivery)
{
	DeliveryKey key = delivery_key(&delivery->id, delivery->handler_id);
	DeliveryEntry *entry = hash_search(deliveries, &key, HASH_ENTER, NULL);

	entry->delivery = delivery;
	deliveries_bytes += delivery->bytes;
}

void
outbox_delivery_grow(OutboxDelivery *delivery, size_t bytes)
{
	delivery->bytes += bytes;
	deliveries_bytes += bytes;
}

void
outbox_delivery_free(OutboxDelivery *delivery)
{
	DeliveryKey key = delivery_key(&delivery->id, delivery->handler_id);

	Assert(delivery->order_key == NULL);
	hash_search(deliveries, &key, HASH_REMOVE, NULL);
	deliveries_bytes -= delivery->bytes;
	if (delivery->message)
		pfree(delivery->message);
	if (delivery->error)
		pfree(delivery->error);
	if (delivery->response)
		pfree(delivery->response);
	pfree(delivery);
}

size_t
outbox_deliveries_bytes(void)
{
	return deliveries_bytes;
}
