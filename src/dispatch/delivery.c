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
#include "dispatch/memory.h"
#include "dispatch/payload.h"

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

static void
count_memory(OutboxDelivery *delivery, int64 bytes)
{
	if (bytes == 0)
		return;
	delivery->memory += bytes;
	delivery->lane->memory[OUTBOX_MEMORY_DELIVERIES] += bytes;
	outbox_memory_count(OUTBOX_MEMORY_DELIVERIES, bytes);
}

void
outbox_delivery_add(OutboxDelivery *delivery)
{
	DeliveryKey key = delivery_key(&delivery->id, delivery->handler_id);
	DeliveryEntry *entry = hash_search(deliveries, &key, HASH_ENTER, NULL);

	entry->delivery = delivery;
	count_memory(delivery, sizeof(OutboxDelivery));
}

void
outbox_delivery_grow(OutboxDelivery *delivery, size_t bytes)
{
	count_memory(delivery, (int64) bytes);
}

void
outbox_delivery_drop_message(OutboxDelivery *delivery)
{
	if (delivery->payload)
		outbox_payload_release(delivery);
	if (delivery->message)
		pfree(delivery->message);
	delivery->message = NULL;
	count_memory(delivery, (int64) sizeof(OutboxDelivery) - (int64) delivery->memory);
}

void
outbox_delivery_free(OutboxDelivery *delivery)
{
	DeliveryKey key = delivery_key(&delivery->id, delivery->handler_id);

	Assert(delivery->order_key == NULL);
	hash_search(deliveries, &key, HASH_REMOVE, NULL);
	outbox_delivery_drop_message(delivery);
	count_memory(delivery, -(int64) delivery->memory);
	if (delivery->error)
		pfree(delivery->error);
	if (delivery->response)
		pfree(delivery->response);
	if (delivery->response_headers)
		pfree(delivery->response_headers);
	pfree(delivery);
}
