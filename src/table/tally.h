/*-------------------------------------------------------------------------
 *
 * tally.h
 *		How many entries each handler has in an index, without reading them all.
 *
 * Of an index whose first column is a handler's id: how many entries each
 * handler has there, and some of them, spread evenly, which stand for all.
 * The pages above the leaves say which leaves there are and where each begins:
 * of a hundred thousand entries that takes two or three pages.  Leaves that
 * more than one handler shares, and the last two of each, are read; of those
 * in between, if there are many, a part.  So it takes about as long with ten
 * million entries as with half a million.
 *
 * Entries of rows that are gone count until somebody has marked them: what the
 * samples are for is to find out how many of the entries are still of use.
 * Where everything has to be right, use an index scan.
 *
 * Process: any backend.  Takes no lock but those of pages, one at a time; the
 * index is locked and a snapshot active, so that no page is used for another
 * purpose meanwhile.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TALLY_H
#define OUTBOX_TALLY_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"

/* Where the row of an entry is, and for how many entries that one stands. */
typedef struct OutboxSample
{
	ItemPointerData tid;
	float4		stands_for;
} OutboxSample;

/* The entries of a handler whose second column lies on one side of the time that was asked for. */
typedef struct OutboxRun
{
	int32		handler_id;
	bool		later;			/* behind it */
	double		entries;		/* more or less, if some of its leaves were not read */
	int			first_sample;
	int			nsamples;
} OutboxRun;

/* Runs in the order of the index, each with its samples in that order. */
typedef struct OutboxTally
{
	OutboxRun  *runs;
	int			nruns;
	OutboxSample *samples;
	int			nsamples;
} OutboxTally;

/*
 * Take a tally of an open index, in the current memory context.  split_at: NULL,
 * or a time by which the entries of a handler are told apart; its second column
 * is one then.
 */
extern OutboxTally *outbox_tally_take(Relation index, const TimestampTz *split_at);

#endif							/* OUTBOX_TALLY_H */
