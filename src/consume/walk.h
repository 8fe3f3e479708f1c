/*-------------------------------------------------------------------------
 *
 * walk.h
 *		Goes through what a consumer may claim, oldest due first.
 *
 * The one loop behind claims and the checks of waiting consumers.  It looks at the strays, then reads
 * the index of outstanding deliveries from the handler's position on, offers
 * each row that nobody stands in the way of to a visitor, and raises the
 * position (watermark.h says why that loses nothing).
 *
 * Claims on handlers that are not ordered take turns (turn.h): in its turn a
 * claim chooses rows from the index and raises the position past them; when
 * the turn is over they are offered to the visitor.  What it does not get of
 * them becomes strays, as ever.
 *
 * Process: any backend, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WALK_H
#define OUTBOX_WALK_H

#include "consume/key_order.h"
#include "consume/pull_handler.h"
#include "consume/watermark.h"
#include "table/delivery.h"

/* What became of a row. */
typedef enum OutboxVisit
{
	OUTBOX_VISIT_TAKEN,			/* it counts towards what is wanted; responsibility for it is taken */
	OUTBOX_VISIT_CHOSEN,		/* it will be offered when our turn is over; no visitor says that */
	OUTBOX_VISIT_PASSED,		/* there is nothing to be done about it now */
	OUTBOX_VISIT_UNRESOLVED		/* somebody has to look at it again */
} OutboxVisit;

typedef struct OutboxWalk OutboxWalk;

/*
 * Offered: table.slot has the row's tid, and unless the walk is writing the
 * row, whose key this is.  Called with the walk's snapshot active; if writing,
 * with the key owed (obligations.h).
 */
typedef OutboxVisit (*OutboxVisitor) (OutboxWalk *walk, const OutboxQueuePosition *key);

/* A row that was chosen in our turn. */
typedef struct OutboxChosen
{
	OutboxQueuePosition key;
	int32		min_version;
	ItemPointerData tid;
} OutboxChosen;

struct OutboxWalk
{
	/* set by the caller */
	const OutboxPullHandler *handler;
	int32		version;		/* rows that ask for a higher one are passed */
	TimestampTz now;			/* what is due later is not looked at */
	int			wanted;			/* stop when so many are taken */
	bool		writing;		/* the visitor changes rows: strays are taken off, not only looked at */
	OutboxVisitor visitor;
	void	   *arg;

	/* for the visitor, and after the walk */
	OutboxDeliveryTable table;
	int			taken;
	TimestampTz next_due;		/* if asked for: nothing before it falls due by itself; DT_NOEND: nothing */
	bool		want_next_due;
	bool		found_locked;		/* somebody other than a consumer holds a row that could be claimed */
	int			nunseen;		/* counted by the visitor: rows that it leaves for transactions younger than its own */

	/* the walk's own */
	OutboxClaimStart start;
	OutboxKeyOrder order;
	bool		found;			/* something is there that has to stay ahead of the position */
	OutboxUnresolved *unresolved;	/* OUTBOX_STRAYS of them */
	int			nunresolved;
	bool		put_back;		/* some were unresolved before */
	Relation	outstanding;	/* the index */
	bool		in_turn;		/* our turn has begun and not ended */
	bool		choosing;		/* rows of the index are chosen, not offered */
	OutboxChosen *chosen;		/* OUTBOX_STRAYS of them; NULL if there are no turns */
	int			nchosen;
};

/* After so many rows that are too young for it, a walk looks for no more. */
#define OUTBOX_MAX_UNSEEN 1000

/* The version of a consumer that names none, and one that may claim everything. */
#define OUTBOX_VERSION_DEFAULT 0
#define OUTBOX_VERSION_HIGHEST PG_INT32_MAX

extern void outbox_walk(OutboxWalk *walk);

#endif							/* OUTBOX_WALK_H */
