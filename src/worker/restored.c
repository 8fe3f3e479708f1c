/*-------------------------------------------------------------------------
 *
 * restored.c
 *		Whether this data directory was restored from a backup.
 *
 * See restored.h.  Every backup brings a backup_label, unless the server was
 * down or the disk was copied at one instant, and point-in-time recovery
 * asks for itself by recovery.signal.  PostgreSQL takes both away while it
 * recovers, so the file must be safe on disk before that.  It may be written
 * again, with another id, if the server ends before: nobody can have adopted
 * what has not recovered.
 *
 * A standby has standby.signal as well, which is what counts.  Then a file
 * is removed that was copied from the primary or is left from a start that
 * somebody made up their mind about.  Where the primary is a restored backup
 * itself, the row that says so is replicated.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "common/file_perm.h"
#include "storage/fd.h"

#include "worker/restored.h"

#define RESTORED_TEMP_FILE OUTBOX_RESTORED_FILE ".tmp"

#define ID_BYTES 16

/* The files are looked at once. */
static bool known = false;
static bool restored = false;
static char id[2 * ID_BYTES + 1];

static bool
file_exists(const char *path)
{
	struct stat status;

	if (stat(path, &status) == 0)
		return true;
	if (errno != ENOENT)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not stat file \"%s\": %m", path)));
	return false;
}

static void
write_file(const char *path, const char *text)
{
	int			fd = OpenTransientFilePerm(path, O_CREAT | O_TRUNC | O_WRONLY | PG_BINARY, pg_file_create_mode);
	int			len = strlen(text);

	if (fd < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not create file \"%s\": %m", path)));
	errno = 0;
	if (write(fd, text, len) != len)
	{
		/* As elsewhere: what says nothing of its cause is a full disk. */
		if (errno == 0)
			errno = ENOSPC;
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", path)));
	}
	if (pg_fsync(fd) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not fsync file \"%s\": %m", path)));
	if (CloseTransientFile(fd) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not close file \"%s\": %m", path)));
}

static void
make_id(void)
{
	uint8		random[ID_BYTES];

	if (!pg_strong_random(random, sizeof(random)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random bits for the id of a restored backup")));
	for (int i = 0; i < ID_BYTES; i++)
		snprintf(id + 2 * i, 3, "%02x", random[i]);
}

static void
note_restore(const char *evidence)
{
	make_id();
	write_file(RESTORED_TEMP_FILE, id);
	durable_rename(RESTORED_TEMP_FILE, OUTBOX_RESTORED_FILE, FATAL);
	known = restored = true;
	ereport(LOG,
			(errmsg("outbox sends nothing from this server, which is being restored from a backup"),
			 errdetail("There is \"%s\" in the data directory, and no \"%s\".", evidence, STANDBY_SIGNAL_FILE),
			 errhint("Once it is certain that the original does not send, call outbox.adopt() in each database.")));
}

static void
forget_restore(void)
{
	if (file_exists(OUTBOX_RESTORED_FILE))
		durable_unlink(OUTBOX_RESTORED_FILE, FATAL);
	known = true;
	restored = false;
}

void
outbox_restored_note(void)
{
	if (file_exists(STANDBY_SIGNAL_FILE))
		forget_restore();
	else if (file_exists(RECOVERY_SIGNAL_FILE))
		note_restore(RECOVERY_SIGNAL_FILE);
	else if (file_exists(BACKUP_LABEL_FILE))
		note_restore(BACKUP_LABEL_FILE);
	/* Processes to come inherit what is known, and need not look. */
	(void) outbox_restored_as();
}

/* What is in the file but is no id of ours is some restore all the same, and has an id up to there. */
static void
read_file(void)
{
	int			fd = OpenTransientFile(OUTBOX_RESTORED_FILE, O_RDONLY | PG_BINARY);
	int			len;

	if (fd < 0 && errno == ENOENT)
		return;
	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", OUTBOX_RESTORED_FILE)));
	len = read(fd, id, sizeof(id) - 1);
	if (len < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", OUTBOX_RESTORED_FILE)));
	CloseTransientFile(fd);
	id[len] = '\0';
	id[strspn(id, "0123456789abcdef")] = '\0';
	restored = true;
}

const char *
outbox_restored_as(void)
{
	if (!known)
		read_file();
	known = true;
	return restored ? id : NULL;
}
