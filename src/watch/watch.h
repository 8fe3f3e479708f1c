/*-------------------------------------------------------------------------
 *
 * watch.h
 *		A watched table: what of its changes is announced, and how.
 *
 * outbox.watch() puts triggers on a table whose one argument is a JSON object
 * of its options.  So a dump carries a watch along as it does triggers, and
 * it ends with the table.  Here the object becomes what the trigger function
 * works with, looked up once for each trigger and again when its table
 * changes.
 *
 * Columns are known by their names.  One that has been renamed is found by
 * the number that it had when the table was watched, as long as it is the
 * same table, and not one that a dump brought; a column that has taken the
 * name over, as at the end of many migrations, is preferred.
 *
 * Process: any backend, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WATCH_H
#define OUTBOX_WATCH_H

#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "nodes/bitmapset.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"

typedef enum OutboxChangeKind
{
	OUTBOX_CREATED,
	OUTBOX_UPDATED,
	OUTBOX_REMOVED,
	OUTBOX_TRUNCATED,
	OUTBOX_CHANGE_KINDS
} OutboxChangeKind;

/* created, updated, deleted, truncated: the last words of topics, and "kind" in payloads. */
extern const char *const outbox_change_names[OUTBOX_CHANGE_KINDS];

/* A column whose value goes into messages. */
typedef struct OutboxWatchColumn
{
	AttrNumber	attnum;
	const char *field;			/* what the payload calls it */
	FmgrInfo	to_text;
	FmgrInfo	to_jsonb;
} OutboxWatchColumn;

typedef struct OutboxWatchColumns
{
	int			n;
	OutboxWatchColumn *column;
} OutboxWatchColumns;

/* A setting of the writer's session that goes into messages. */
typedef struct OutboxWatchActor
{
	const char *field;
	const char *setting;
} OutboxWatchActor;

typedef struct OutboxWatch
{
	Oid			root;			/* the table that was named to outbox.watch(): with partitions, the top */
	const char *model;
	text	   *topics[OUTBOX_CHANGE_KINDS];
	bool		announces[OUTBOX_CHANGE_KINDS];
	bool		refuses_truncate;
	OutboxWatchColumns record_id;
	OutboxWatchColumns tenant;	/* none or one, as is key */
	OutboxWatchColumns key;
	OutboxWatchColumns include;
	OutboxWatchColumns context;
	AttrNumber	soft_delete;	/* InvalidAttrNumber: none */
	bool		soft_delete_is_flag;
	Bitmapset  *ignored;		/* attribute numbers */
	int			nactors;
	OutboxWatchActor *actors;
} OutboxWatch;

/*
 * What a trigger of a watched table announces.  Raises undefined_column if a
 * column that it cannot do without is gone.  Valid until the end of the
 * transaction, whatever happens to the table meanwhile.
 */
extern const OutboxWatch *outbox_watch_of(const Trigger *trigger, Relation rel);

/*
 * Read and check the options of outbox.watch(), a JSON object, for a table,
 * and append to them what is to be known of the table later.  Raises
 * invalid_parameter_value, undefined_column or feature_not_supported.
 */
extern OutboxWatch *outbox_watch_check(StringInfo options, Relation rel);

#endif							/* OUTBOX_WATCH_H */
