/*-------------------------------------------------------------------------
 *
 * counters_file.c
 *		Takes the counters over a restart of the server.
 *
 * See counters.h.  The postmaster outlives everybody who counts: when it ends
 * it writes the entries to a file beside those of PostgreSQL's own statistics,
 * and when it starts it reads that and takes it away, so that nobody meets it
 * twice.  After a crash there is none; one that an immediate shutdown has left
 * is not read, for what it counted may not have been kept.  A file that is
 * damaged or of another release is passed over: numbers begin again at zero,
 * as their stats_reset says.
 *
 * Process: the postmaster.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "shared/counters.h"

#define COUNTERS_FILE PGSTAT_STAT_PERMANENT_DIRECTORY "/outbox.stat"
#define COUNTERS_TEMP_FILE COUNTERS_FILE ".tmp"

/* To be changed with the meaning of any counter. */
#define COUNTERS_FORMAT 1

/* What a file begins with; then come the records, and a checksum of all that. */
typedef struct Header
{
	char		magic[8];
	uint32		format;
	uint32		ncounters;		/* of each record */
	uint32		nbuckets;
	uint32		nrecords;
} Header;

static const char magic[8] = {'o', 'u', 't', 'b', 'o', 'x', 's', 't'};

typedef struct Record
{
	uint64		owner;
	uint64		reset_at;
	uint64		counts[OUTBOX_COUNTERS];
} Record;

/* A file that is being written or read, and the checksum of what was. */
typedef struct Stream
{
	FILE	   *file;
	pg_crc32c	crc;
} Stream;

static bool
put(Stream *stream, const void *data, Size size)
{
	COMP_CRC32C(stream->crc, data, size);
	return fwrite(data, size, 1, stream->file) == 1;
}

static bool
get(Stream *stream, void *data, Size size)
{
	if (fread(data, size, 1, stream->file) != 1)
		return false;
	COMP_CRC32C(stream->crc, data, size);
	return true;
}

static void
fill_header(Header *header)
{
	memset(header, 0, sizeof(Header));
	memcpy(header->magic, magic, sizeof(magic));
	header->format = COUNTERS_FORMAT;
	header->ncounters = OUTBOX_COUNTERS;
	header->nbuckets = OUTBOX_BUCKETS;
	for (int i = 0; i < outbox_counters_size(); i++)
	{
		if (outbox_counters_is_owner(pg_atomic_read_u64(&outbox_counters_entries()[i].owner)))
			header->nrecords++;
	}
}

static bool
write_records(Stream *stream)
{
	Header		header;
	Record		record;

	fill_header(&header);
	if (!put(stream, &header, sizeof(header)))
		return false;
	for (int i = 0; i < outbox_counters_size(); i++)
	{
		OutboxCounters *entry = &outbox_counters_entries()[i];

		record.owner = pg_atomic_read_u64(&entry->owner);
		if (!outbox_counters_is_owner(record.owner))
			continue;
		record.reset_at = pg_atomic_read_u64(&entry->reset_at);
		for (int j = 0; j < OUTBOX_COUNTERS; j++)
			record.counts[j] = pg_atomic_read_u64(&entry->counts[j]);
		if (!put(stream, &record, sizeof(record)))
			return false;
	}
	FIN_CRC32C(stream->crc);
	return fwrite(&stream->crc, sizeof(stream->crc), 1, stream->file) == 1;
}

/* Nobody counts any more.  Whatever goes wrong costs the numbers only. */
static void
write_file(int code, Datum arg)
{
	Stream		stream;

	/* A crash: what is in the memory is not to be trusted. */
	if (code != 0 || outbox_counters_size() == 0)
		return;
	INIT_CRC32C(stream.crc);
	stream.file = AllocateFile(COUNTERS_TEMP_FILE, PG_BINARY_W);
	if (stream.file != NULL)
	{
		bool		written = write_records(&stream);

		if (FreeFile(stream.file) == 0 && written && durable_rename(COUNTERS_TEMP_FILE, COUNTERS_FILE, LOG) == 0)
			return;
	}
	ereport(LOG,
			(errcode_for_file_access(),
			 errmsg("could not write file \"%s\": %m", COUNTERS_TEMP_FILE)));
	unlink(COUNTERS_TEMP_FILE);
}

/* Has the server been shut down in an orderly way? */
static bool
is_after_shutdown(void)
{
	bool		is_sound;
	ControlFileData *control = get_controlfile(DataDir, &is_sound);
	bool		orderly = is_sound && (control->state == DB_SHUTDOWNED || control->state == DB_SHUTDOWNED_IN_RECOVERY);

	pfree(control);
	return orderly;
}

/* Read the records twice: first to see whether they are sound, then to take them over. */
static bool
read_records(Stream *stream, const Header *header, bool take)
{
	Record		record;

	for (uint32 i = 0; i < header->nrecords; i++)
	{
		OutboxCounters *entry;

		if (!get(stream, &record, sizeof(record)) || !outbox_counters_is_owner(record.owner))
			return false;
		entry = take ? outbox_counters_make(record.owner) : NULL;
		if (entry == NULL)
			continue;
		pg_atomic_write_u64(&entry->reset_at, record.reset_at);
		for (int j = 0; j < OUTBOX_COUNTERS; j++)
			pg_atomic_write_u64(&entry->counts[j], record.counts[j]);
	}
	return true;
}

static bool
read_file(Stream *stream)
{
	Header		header;
	pg_crc32c	written;

	INIT_CRC32C(stream->crc);
	if (!get(stream, &header, sizeof(header)) || memcmp(header.magic, magic, sizeof(magic)) != 0 ||
		header.format != COUNTERS_FORMAT || header.ncounters != OUTBOX_COUNTERS || header.nbuckets != OUTBOX_BUCKETS ||
		!read_records(stream, &header, false))
		return false;
	FIN_CRC32C(stream->crc);
	if (fread(&written, sizeof(written), 1, stream->file) != 1 || !EQ_CRC32C(written, stream->crc) ||
		fgetc(stream->file) != EOF || fseek(stream->file, sizeof(header), SEEK_SET) != 0)
		return false;
	return read_records(stream, &header, true);
}

void
outbox_counters_file_startup(void)
{
	Stream		stream;

	on_shmem_exit(write_file, (Datum) 0);
	unlink(COUNTERS_TEMP_FILE);
	stream.file = AllocateFile(COUNTERS_FILE, PG_BINARY_R);
	if (stream.file == NULL)
	{
		if (errno != ENOENT)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", COUNTERS_FILE)));
		return;
	}
	if (is_after_shutdown() && !read_file(&stream))
		ereport(LOG,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("outbox begins to count anew, because it cannot read file \"%s\"", COUNTERS_FILE)));
	FreeFile(stream.file);
	unlink(COUNTERS_FILE);
}
