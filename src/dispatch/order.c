/*-------------------------------------------------------------------------
 *
 * order.c
 *		Which delivery of a message key may go next, on ordered lanes.
 *
 * See order.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "dispatch/delivery.h"
#include "dispatch/order.h"
#include "dispatch/schedule.h"

/* How many of a key are read ahead while its deliveries succeed; batches may ask for more. */
#define READ_AHEAD 32
#define READ_AHEAD_BESIDE_OTHERS 8	/* that are yet to be read */
#define MAX_READ_AHEAD 1000

/* Together, on one lane. */
#define MAX_WAITING 2000

/* Keys without members that are remembered, on all lanes together. */
#define MAX_REMEMBERED 4096

/* Of a key, so many may have been answered and not settled. */
#define MAX_UNSETTLED_OF_KEY 512

/* Index entries a key scan steps over before its key's floor is worth remembering. */
#define FLOOR_WORTH 32

struct OutboxOrderKey
{
	const char *key;
	OutboxOrder *order;
	dlist_head	members;		/* in the order they were taken */
	int			count[OUTBOX_ORDER_STATES];
	int			npinned;			/* members whose settlement is waited for */
	bool		flowing;		/* the last answer was a success: read ahead */
	bool		more;			/* there are rows behind the members */
	bool		being_scanned;
	int			scan_entries;	/* of settled rows, that the last key scan stepped over */

	/* Nothing below this is outstanding, as far as is known: key scans start here. */
	pg_uuid_t	floor;
	bool		complete;		/* nor up to the last member, but for the members */

	bool		wanted;			/* to be scanned */
	dlist_node	wanted_link;

	/* While it has no members: its head, and until when that blocks it. */
	bool		blocked;
	pg_uuid_t	head;
	TimestampTz blocked_until;	/* DT_NOEND: until an operator acts */
	bool		remembered;
	dlist_node	remembered_link;
};

typedef struct KeyEntry
{
	const char *key;
	uint32		hash;
	char		status;
	OutboxOrderKey *state;
} KeyEntry;

#define SH_PREFIX keys
#define SH_ELEMENT_TYPE KeyEntry
#define SH_KEY_TYPE const char *
#define SH_KEY key
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) (key), strlen(key))
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) (a)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

struct OutboxOrder
{
	OutboxLane *lane;
	MemoryContext context;
	keys_hash  *keys;
	dlist_head	waiting;		/* deliveries that wait for the one before them */
	int			nwaiting;
	dlist_head	wanted;
	dlist_node	wanting_link;	/* while wanted is not empty */
};

static int	norders = 0;
static dlist_head wanting = DLIST_STATIC_INIT(wanting);

/* Least recently used last. */
static dlist_head remembered = DLIST_STATIC_INIT(remembered);
static int	nremembered = 0;

static int
id_cmp(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return memcmp(a->data, b->data, UUID_LEN);
}

void
outbox_order_create(OutboxLane *lane, MemoryContext context)
{
	MemoryContext own;
	OutboxOrder *order;

	if (lane->order != NULL)
		return;
	own = AllocSetContextCreate(context, "outbox order", ALLOCSET_SMALL_SIZES);
	order = MemoryContextAllocZero(own, sizeof(OutboxOrder));
	order->lane = lane;
	order->context = own;
	order->keys = keys_create(own, 16, NULL);
	dlist_init(&order->waiting);
	dlist_init(&order->wanted);
	lane->order = order;
	norders++;
}

const char *
outbox_order_key_text(const OutboxOrderKey *key)
{
	return key->key;
}

bool
outbox_order_exists(void)
{
	return norders > 0;
}

static void
unremember(OutboxOrderKey *key)
{
	if (!key->remembered)
		return;
	dlist_delete(&key->remembered_link);
	key->remembered = false;
	nremembered--;
}

static void
unwant(OutboxOrderKey *key)
{
	if (!key->wanted)
		return;
	dlist_delete(&key->wanted_link);
	key->wanted = false;
	if (dlist_is_empty(&key->order->wanted))
		dlist_delete(&key->order->wanting_link);
}

void
outbox_order_want(OutboxOrderKey *key)
{
	if (key->wanted)
		return;
	unremember(key);
	if (dlist_is_empty(&key->order->wanted))
		dlist_push_tail(&wanting, &key->order->wanting_link);
	dlist_push_tail(&key->order->wanted, &key->wanted_link);
	key->wanted = true;
	outbox_lane_ready(key->order->lane);
}

static void
forget_key(OutboxOrderKey *key)
{
	unremember(key);
	unwant(key);
	keys_delete(key->order->keys, key->key);
	pfree(key);
}

static void
remember(OutboxOrderKey *key)
{
	if (key->remembered)
		return;
	dlist_push_head(&remembered, &key->remembered_link);
	key->remembered = true;
	if (++nremembered > MAX_REMEMBERED)
		forget_key(dlist_container(OutboxOrderKey, remembered_link, dlist_tail_node(&remembered)));
}

/* A key that has nothing to do goes, or is remembered if that saves work. */
static void
tidy(OutboxOrderKey *key)
{
	if (key->being_scanned || key->wanted || !dlist_is_empty(&key->members))
		return;
	if (key->blocked || key->scan_entries > FLOOR_WORTH)
		remember(key);
	else
		forget_key(key);
}

void
outbox_order_free(OutboxLane *lane)
{
	OutboxOrder *order = lane->order;
	keys_iterator iterator;
	KeyEntry   *entry;

	if (order == NULL)
		return;
	Assert(order->nwaiting == 0);
	keys_start_iterate(order->keys, &iterator);
	while ((entry = keys_iterate(order->keys, &iterator)) != NULL)
	{
		unremember(entry->state);
		unwant(entry->state);
	}
	MemoryContextDelete(order->context);
	lane->order = NULL;
	norders--;
}

static OutboxOrderKey *
find_or_make(OutboxOrder *order, const char *text)
{
	KeyEntry   *entry = keys_lookup(order->keys, text);
	OutboxOrderKey *key;
	size_t		len;
	bool		found;

	if (entry != NULL)
		return entry->state;

	len = strlen(text) + 1;
	key = MemoryContextAllocZero(order->context, sizeof(OutboxOrderKey) + len);
	memcpy(key + 1, text, len);
	key->key = (const char *) (key + 1);
	key->order = order;
	dlist_init(&key->members);
	keys_insert(order->keys, key->key, &found)->state = key;
	return key;
}

static void
lower_floor(OutboxOrderKey *key, const pg_uuid_t *id)
{
	if (id_cmp(id, &key->floor) < 0)
		key->floor = *id;
	key->complete = false;
}

static OutboxDelivery *
member(dlist_node *node)
{
	return dlist_container(OutboxDelivery, order_link, node);
}

static void
set_state(OutboxDelivery *delivery, OutboxOrderState state)
{
	OutboxOrderKey *key = delivery->order_key;

	if (delivery->order_state == OUTBOX_ORDER_WAITING)
	{
		dlist_delete(&delivery->link);
		key->order->nwaiting--;
	}
	key->count[delivery->order_state]--;
	key->count[state]++;
	delivery->order_state = state;
	if (state == OUTBOX_ORDER_WAITING)
	{
		dlist_push_tail(&key->order->waiting, &delivery->link);
		key->order->nwaiting++;
	}
}

/* Those that can be forgotten without anybody having seen them. */
static int
count_unsent(const OutboxOrderKey *key)
{
	return key->count[OUTBOX_ORDER_READ] + key->count[OUTBOX_ORDER_WAITING];
}

/* Nothing of the key is on its way. */
static bool
is_idle(const OutboxOrderKey *key)
{
	return count_unsent(key) + key->count[OUTBOX_ORDER_OUT] + key->count[OUTBOX_ORDER_FAILED] == 0;
}

static bool
is_unsent(const OutboxDelivery *delivery)
{
	return delivery->order_state == OUTBOX_ORDER_READ ||
		delivery->order_state == OUTBOX_ORDER_WAITING ||
		(delivery->order_state == OUTBOX_ORDER_OUT && delivery->phase == OUTBOX_PHASE_QUEUED);
}

/*
 * The last one that has not been sent, from the end of the members back to
 * end; NULL for none.  As a rule they are the last members.  But one that
 * turned out not to be fit for sending, when it was read or was to be
 * written, has its verdict before those ahead of it are sent.
 */
static OutboxDelivery *
last_unsent(dlist_node *from, const dlist_node *end)
{
	for (dlist_node *node = from; node != end; node = node->prev)
	{
		OutboxDelivery *delivery = member(node);

		if (is_unsent(delivery))
			return delivery;
		if (delivery->order_state != OUTBOX_ORDER_FAILED && delivery->order_state != OUTBOX_ORDER_SETTLED)
			break;
	}
	return NULL;
}

/*
 * Forget what has not been sent, of the members behind end, and has an id
 * behind after (NULL: all of it).  True if there was any.
 */
static bool
forget_unsent_behind(OutboxOrderKey *key, const dlist_node *end, const pg_uuid_t *after)
{
	OutboxDelivery *delivery = last_unsent(key->members.head.prev, end);
	bool		forgot = false;

	while (delivery != NULL && (after == NULL || id_cmp(&delivery->id, after) > 0))
	{
		dlist_node *before = delivery->order_link.prev;

		if (delivery->order_state == OUTBOX_ORDER_READ)
			dlist_delete(&delivery->link);
		else if (delivery->order_state == OUTBOX_ORDER_OUT)
			outbox_lane_unqueue(delivery->lane, delivery);
		/* The last one may take the key with it, unless it is wanted, which forgetting sees to. */
		outbox_order_discard(delivery);
		forgot = true;
		delivery = last_unsent(before, end);
	}
	return forgot;
}

static bool
forget_unsent(OutboxOrderKey *key, const pg_uuid_t *after)
{
	return forget_unsent_behind(key, &key->members.head, after);
}

static int
read_ahead(const OutboxOrderKey *key)
{
	const OutboxLane *lane = key->order->lane;
	int			turn = lane->more ? READ_AHEAD_BESIDE_OTHERS : READ_AHEAD;

	return lane->handler == NULL ? turn : Max(turn, Min(2 * lane->handler->batch_size, MAX_READ_AHEAD));
}

/* May another one go out now?  Answers that cannot be settled must not pile up. */
static bool
may_release(const OutboxOrderKey *key)
{
	return key->count[OUTBOX_ORDER_OUT] == 0 && key->count[OUTBOX_ORDER_FAILED] == 0 &&
		key->npinned == 0 && key->count[OUTBOX_ORDER_OK] < Max(MAX_UNSETTLED_OF_KEY, 2 * read_ahead(key));
}

/* Let the first one that waits go out, if it may. */
static void
release_next(OutboxOrderKey *key)
{
	OutboxDelivery *first = NULL;

	if (key->count[OUTBOX_ORDER_WAITING] == 0 || !may_release(key))
		return;
	for (OutboxDelivery *delivery = last_unsent(key->members.head.prev, &key->members.head); delivery != NULL;
		 delivery = last_unsent(delivery->order_link.prev, &key->members.head))
	{
		if (delivery->order_state == OUTBOX_ORDER_WAITING)
			first = delivery;
	}
	set_state(first, OUTBOX_ORDER_OUT);
	outbox_lane_enqueue(first->lane, first);
	outbox_lane_ready(first->lane);
}

OutboxOrderKey *
outbox_order_meet(OutboxOrder *order, const char *text, const pg_uuid_t *id, TimestampTz now)
{
	OutboxOrderKey *key = find_or_make(order, text);
	OutboxDelivery *last;

	/* Whatever becomes of it now, a later key scan must not start behind it. */
	if (id_cmp(id, &key->floor) < 0)
		lower_floor(key, id);
	if (key->remembered && key->blocked && now < key->blocked_until && id_cmp(id, &key->head) > 0)
	{
		dlist_move_head(&remembered, &key->remembered_link);
		return NULL;
	}
	if (dlist_is_empty(&key->members))
		return key;
	key->more = true;
	last = member(dlist_tail_node(&key->members));
	if (id_cmp(id, &last->id) > 0)
		return NULL;

	/* A late one goes before those that have not been sent. */
	lower_floor(key, id);
	return forget_unsent(key, id) ? key : NULL;
}

bool
outbox_order_has_wanted(const OutboxOrder *order)
{
	return order != NULL && !dlist_is_empty((dlist_head *) &order->wanted);
}

OutboxOrderKey *
outbox_order_next_wanted(OutboxOrder *order)
{
	if (!outbox_order_has_wanted(order))
		return NULL;
	return dlist_container(OutboxOrderKey, wanted_link, dlist_head_node(&order->wanted));
}

int
outbox_order_lanes(OutboxLane **lanes, int max)
{
	dlist_iter	iter;
	int			n = 0;

	dlist_foreach(iter, &wanting)
	{
		OutboxLane *lane = dlist_container(OutboxOrder, wanting_link, iter.cur)->lane;

		if (n == max)
			break;
		if (!lane->paused && lane->handler != NULL)
			lanes[n++] = lane;
	}
	return n;
}

void
outbox_order_begin_key_scan(OutboxOrderKey *key)
{
	unremember(key);
	unwant(key);
	key->being_scanned = true;
	key->blocked = false;
	key->more = false;
	key->scan_entries = 0;
}

bool
outbox_order_start(OutboxOrderKey *key, pg_uuid_t *id)
{
	bool		from_floor = !key->complete || dlist_is_empty(&key->members);

	if (!from_floor)
	{
		const OutboxDelivery *first = member(dlist_head_node(&key->members));
		const OutboxDelivery *last = member(dlist_tail_node(&key->members));

		/* Behind a late one nothing is known. */
		if (id_cmp(&first->id, &key->floor) > 0 && id_cmp(&first->id, &last->id) <= 0)
			key->floor = first->id;
	}
	*id = from_floor ? key->floor : member(dlist_tail_node(&key->members))->id;
	key->complete = false;
	return from_floor;
}

void
outbox_order_end_key_scan(OutboxOrderKey *key)
{
	key->being_scanned = false;
	tidy(key);
}

int
outbox_order_room(const OutboxOrderKey *key)
{
	int			unsent = count_unsent(key);

	if (key->count[OUTBOX_ORDER_FAILED] > 0)
		return 0;
	if (!key->flowing || key->order->nwaiting >= MAX_WAITING)
		return unsent + key->count[OUTBOX_ORDER_OUT] == 0 ? 1 : 0;
	return Max(0, read_ahead(key) - unsent);
}

bool
outbox_order_goes_first(const OutboxOrderKey *key)
{
	return count_unsent(key) + key->count[OUTBOX_ORDER_OUT] == 0;
}

bool
outbox_order_is_under_way(const OutboxDelivery *delivery)
{
	return delivery->order_state != OUTBOX_ORDER_FAILED && delivery->order_state != OUTBOX_ORDER_SETTLED;
}

void
outbox_order_raise_floor(OutboxOrderKey *key, const pg_uuid_t *id)
{
	key->floor = *id;
}

void
outbox_order_stepped_over(OutboxOrderKey *key, int entries)
{
	key->scan_entries += entries;
}

void
outbox_order_leaves_rows(OutboxOrderKey *key)
{
	key->more = true;
}

void
outbox_order_is_complete(OutboxOrderKey *key)
{
	key->complete = true;
}

void
outbox_order_block(OutboxOrderKey *key, const pg_uuid_t *head, TimestampTz until)
{
	key->blocked = true;
	key->head = *head;
	key->blocked_until = until;
}

void
outbox_order_take(OutboxOrderKey *key, OutboxDelivery *delivery)
{
	forget_unsent(key, &delivery->id);
	delivery->order_key = key;
	delivery->order_state = OUTBOX_ORDER_READ;
	key->count[OUTBOX_ORDER_READ]++;
	dlist_push_tail(&key->members, &delivery->order_link);
}

bool
outbox_order_arrived(OutboxDelivery *delivery)
{
	OutboxOrderKey *key = delivery->order_key;
	bool		goes;

	if (key == NULL)
		return true;
	goes = key->count[OUTBOX_ORDER_WAITING] == 0 && may_release(key);
	set_state(delivery, goes ? OUTBOX_ORDER_OUT : OUTBOX_ORDER_WAITING);
	return goes;
}

int
outbox_order_waiting(const OutboxOrder *order)
{
	return order == NULL ? 0 : order->nwaiting;
}

OutboxDelivery *
outbox_order_follower(OutboxDelivery *delivery)
{
	OutboxOrderKey *key = delivery->order_key;
	OutboxDelivery *next;

	if (key == NULL || !dlist_has_next(&key->members, &delivery->order_link))
		return NULL;
	/* Whether it has gone well its function decides, later. */
	if (delivery->lane->handler->on_settle != NULL)
		return NULL;
	next = member(dlist_next_node(&key->members, &delivery->order_link));
	/* One that has failed before goes alone: those behind it would spend attempts on its account. */
	if (next->order_state != OUTBOX_ORDER_WAITING || next->awaits_payload || key->npinned > 0 ||
		delivery->attempts > delivery->budget_from)
		return NULL;
	set_state(next, OUTBOX_ORDER_OUT);
	return next;
}

bool
outbox_order_taken_back(OutboxDelivery *delivery)
{
	OutboxOrderKey *key = delivery->order_key;

	if (key == NULL || !dlist_has_prev(&key->members, &delivery->order_link) ||
		member(dlist_prev_node(&key->members, &delivery->order_link))->order_state != OUTBOX_ORDER_OUT)
		return false;
	delivery->phase = OUTBOX_PHASE_QUEUED;
	set_state(delivery, OUTBOX_ORDER_WAITING);
	return true;
}

static bool
blocks_on_dead(const OutboxOrderKey *key)
{
	const OutboxHandler *handler = key->order->lane->handler;

	return handler != NULL && handler->block_on_dead;
}

/* Does this outcome keep those behind it from being tried? */
static bool
stops_key(const OutboxDelivery *delivery)
{
	return delivery->verdict.state == OUTBOX_RETRYING ||
		(delivery->verdict.state == OUTBOX_DEAD && blocks_on_dead(delivery->order_key));
}

/* Was an earlier one of the same request not done with? */
static bool
is_behind_failure(const OutboxDelivery *delivery)
{
	dlist_iter	iter;

	if (delivery->order_key->count[OUTBOX_ORDER_FAILED] == 0)
		return false;
	dlist_foreach(iter, &delivery->order_key->members)
	{
		const OutboxDelivery *earlier = member(iter.cur);

		if (earlier == delivery)
			break;
		if (earlier->order_state == OUTBOX_ORDER_FAILED && stops_key(earlier))
			return true;
	}
	return false;
}

/*
 * Is it time to read on?  Early enough that the next one is there when it
 * may go; but while the lane has others to read, what was read ahead was this
 * key's turn, and it queues up again when that is over.
 */
static bool
wants_more(const OutboxOrderKey *key)
{
	return key->order->lane->more ? is_idle(key) : count_unsent(key) < read_ahead(key) / 2;
}

bool
outbox_order_answered(OutboxDelivery *delivery)
{
	OutboxOrderKey *key = delivery->order_key;

	if (key == NULL)
		return true;
	if (is_behind_failure(delivery))
		return false;
	if (delivery->verdict.state != OUTBOX_DELIVERED || delivery->has_on_settle)
	{
		set_state(delivery, OUTBOX_ORDER_FAILED);
		key->flowing = false;
		/* Its settlement decides what comes next. */
		key->more = key->more || key->wanted;
		forget_unsent_behind(key, &delivery->order_link, NULL);
		unwant(key);
		return true;
	}
	set_state(delivery, OUTBOX_ORDER_OK);
	key->flowing = true;
	release_next(key);
	if (key->more && wants_more(key))
		outbox_order_want(key);
	return true;
}

/*
 * Those that are settled precede those that are answered, so the nearest
 * answered one tells.
 */
bool
outbox_order_must_wait(const OutboxDelivery *delivery)
{
	OutboxOrderKey *key = delivery->order_key;

	if (key == NULL)
		return false;
	for (dlist_node *node = delivery->order_link.prev; node != &key->members.head; node = node->prev)
	{
		OutboxOrderState state = member(node)->order_state;

		if (state == OUTBOX_ORDER_SETTLED)
			return false;
		if (state == OUTBOX_ORDER_OK || state == OUTBOX_ORDER_FAILED)
			return true;
	}
	return false;
}

static void
set_pinned(OutboxDelivery *delivery, bool pinned)
{
	if (delivery->pinned == pinned)
		return;
	delivery->pinned = pinned;
	delivery->order_key->npinned += pinned ? 1 : -1;
}

void
outbox_order_pin(OutboxDelivery *delivery)
{
	if (delivery->order_key != NULL)
		set_pinned(delivery, true);
}

void
outbox_order_settled(OutboxDelivery *delivery, bool outstanding, TimestampTz due_at)
{
	OutboxOrderKey *key = delivery->order_key;
	bool		blocks;

	if (key == NULL)
		return;
	/* It stays pinned until it leaves memory: the transaction may yet fail. */
	delivery->order_before = delivery->order_state;
	set_state(delivery, OUTBOX_ORDER_SETTLED);
	blocks = outstanding || (!delivery->obsolete && stops_key(delivery));
	if (blocks)
		outbox_order_block(key, &delivery->id, outstanding ? due_at : DT_NOEND);
	if (outstanding)
	{
		/* Requeued while its request was out: it goes before those. */
		forget_unsent(key, &delivery->id);
		lower_floor(key, &delivery->id);
	}
	/* One that came late may go before the one that blocks. */
	if (is_idle(key) && (!blocks || key->more))
		outbox_order_want(key);
}

void
outbox_order_unsettled(OutboxDelivery *delivery)
{
	if (delivery->order_key == NULL)
		return;
	set_state(delivery, delivery->order_before);
	/* What the transaction made of it may have blocked the key, and been passed by a key scan. */
	delivery->order_key->blocked = false;
	lower_floor(delivery->order_key, &delivery->id);
}

static void
remove_member(OutboxDelivery *delivery)
{
	OutboxOrderKey *key = delivery->order_key;

	if (key == NULL)
		return;
	set_pinned(delivery, false);
	if (delivery->order_state == OUTBOX_ORDER_WAITING)
		set_state(delivery, OUTBOX_ORDER_READ);
	key->count[delivery->order_state]--;
	dlist_delete(&delivery->order_link);
	delivery->order_key = NULL;

	if (delivery->order_state == OUTBOX_ORDER_SETTLED)
	{
		release_next(key);
		/* A row was met in the transaction that settled the last one, when the key had been scanned. */
		if (key->more && is_idle(key))
			outbox_order_want(key);
	}
	else
	{
		/* It is still outstanding, as far as is known. */
		lower_floor(key, &delivery->id);
		outbox_order_want(key);
	}
	tidy(key);
}

void
outbox_order_discard(OutboxDelivery *delivery)
{
	remove_member(delivery);
	outbox_delivery_free(delivery);
}

void
outbox_order_forget_waiting(OutboxOrder *order)
{
	while (!dlist_is_empty(&order->waiting))
		outbox_order_discard(dlist_container(OutboxDelivery, link, dlist_head_node(&order->waiting)));
}

/*
 * What of the key lies in the notice's range, and has been sent, may have been
 * requeued: whether its answer counts is only known once that is settled,
 * and nothing goes before that.
 */
static void
hold_changed(OutboxOrderKey *key, const OutboxNotice *notice)
{
	bool		any = false;
	dlist_iter	iter;

	dlist_foreach(iter, &key->members)
	{
		OutboxDelivery *delivery = member(iter.cur);
		OutboxQueuePosition at = {delivery->due_at, delivery->id};

		if (outbox_position_cmp(&at, &notice->lo) < 0 || outbox_position_cmp(&at, &notice->hi) > 0)
			continue;
		set_pinned(delivery, true);
		any = true;
	}
	if (any)
		forget_unsent(key, NULL);
}

static void
hold_all_changed(OutboxOrder *order, const OutboxNotice *notice)
{
	keys_iterator iterator;
	KeyEntry   *entry;

	keys_start_iterate(order->keys, &iterator);
	while ((entry = keys_iterate(order->keys, &iterator)) != NULL)
		hold_changed(entry->state, notice);
}

void
outbox_order_changed(OutboxOrder *order, const OutboxNotice *notice)
{
	bool		exact = outbox_position_cmp(&notice->lo, &notice->hi) == 0;
	OutboxDelivery *delivery = exact ? outbox_delivery_find(&notice->lo.id, notice->handler_id) : NULL;
	dlist_mutable_iter iter;

	if (!exact)
		hold_all_changed(order, notice);
	else if (delivery != NULL && delivery->order_key != NULL)
		hold_changed(delivery->order_key, notice);
	outbox_order_forget_waiting(order);
	dlist_foreach_modify(iter, &remembered)
	{
		OutboxOrderKey *key = dlist_container(OutboxOrderKey, remembered_link, iter.cur);

		if (key->order == order && key->blocked && (!exact || id_cmp(&key->head, &notice->lo.id) == 0))
			outbox_order_want(key);
	}
}

void
outbox_order_forget_blocked(OutboxOrder *order)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &remembered)
	{
		OutboxOrderKey *key = dlist_container(OutboxOrderKey, remembered_link, iter.cur);

		if (key->order != order || !key->blocked)
			continue;
		key->blocked = false;
		unremember(key);
		tidy(key);
	}
}
