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
 * A standby has standby.signal as well, which is what counts.  Then a file is
 * removed that is left from a recovery of this directory that has not ended:
 * somebody made up their mind.  One whose recovery has ended stays, because
 * there are managers of clusters that start each server as a standby and promote
 * it then, and that makes no other server of it.  One that came along from the
 * primary stays as well: that is a restored backup itself, and until its
 * dispatcher has written the row that says so, which is replicated, nothing
 * else tells it here.  A file of this directory is told by its own place on its
 * disk, which it names; one that is to stay for good names none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "common/file_perm.h"
#include "miscadmin.h"
#include "storage/fd.h"

#include "worker/restored.h"

#define RESTORED_TEMP_FILE OUTBOX_RESTORED_FILE ".tmp"

#define ID_BYTES 16

/* The id, a line break, and perhaps where the file is. */
#define MAX_TEXT 128

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

/* What the file says: the id, and a place that no copy of it has. */
static int
compose(int fd, char *text)
{
	struct stat status;

	if (fstat(fd, &status) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not stat file \"%s\": %m", OUTBOX_RESTORED_FILE)));
	return snprintf(text, MAX_TEXT, "%.*s\n%llu:%llu\n", 2 * ID_BYTES, id,
					(unsigned long long) status.st_dev, (unsigned long long) status.st_ino);
}

/* Write the file, with its place or for good. */
static void
write_file(bool with_place)
{
	const char *path = RESTORED_TEMP_FILE;
	int			fd = OpenTransientFilePerm(path, O_CREAT | O_TRUNC | O_WRONLY | PG_BINARY, pg_file_create_mode);
	char		text[MAX_TEXT];
	int			len;

	if (fd < 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not create file \"%s\": %m", path)));
	len = with_place ? compose(fd, text) : snprintf(text, sizeof(text), "%s\n", id);
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
	durable_rename(path, OUTBOX_RESTORED_FILE, FATAL);
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

/*
 * Read the file, if there is one.  What is in it but is no id of ours is some
 * restore all the same, and has an id up to there.  Returns whether the file
 * was written where it is, by this server.
 */
static bool
read_file(void)
{
	int			fd = OpenTransientFile(OUTBOX_RESTORED_FILE, O_RDONLY | PG_BINARY);
	char		text[MAX_TEXT];
	char		own[MAX_TEXT];
	int			len;

	if (fd < 0 && errno == ENOENT)
		return false;
	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", OUTBOX_RESTORED_FILE)));
	len = read(fd, text, sizeof(text) - 1);
	if (len < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", OUTBOX_RESTORED_FILE)));
	text[len] = '\0';
	strlcpy(id, text, sizeof(id));
	id[strspn(id, "0123456789abcdef")] = '\0';
	restored = true;
	(void) compose(fd, own);
	CloseTransientFile(fd);
	return strcmp(text, own) == 0;
}

/*
 * Has this directory been a server that accepts writes since it was restored?
 * A backup, or what pg_rewind made, has what its source said of itself, and a
 * backup_label.
 */
static bool
recovery_has_ended(void)
{
	ControlFileData *control;
	bool		crc_ok;
	DBState		state;

	if (file_exists(BACKUP_LABEL_FILE))
		return false;
	control = get_controlfile(DataDir, &crc_ok);
	state = control->state;
	pfree(control);
	return state != DB_IN_ARCHIVE_RECOVERY && state != DB_SHUTDOWNED_IN_RECOVERY;
}

/* The server is a standby: is the file, if there is one, still to count? */
static void
review_restore(void)
{
	if (read_file())
	{
		if (recovery_has_ended())
			write_file(false);
		else
		{
			durable_unlink(OUTBOX_RESTORED_FILE, FATAL);
			restored = false;
		}
	}
	known = true;
}

static void
note_restore(const char *evidence)
{
	make_id();
	write_file(true);
	known = restored = true;
	ereport(LOG,
			(errmsg("outbox sends nothing from this server, which is being restored from a backup"),
			 errdetail("There is \"%s\" in the data directory, and no \"%s\".", evidence, STANDBY_SIGNAL_FILE),
			 errhint("Once it is certain that the original does not send, call outbox.adopt() in each database.")));
}

void
outbox_restored_note(void)
{
	if (file_exists(STANDBY_SIGNAL_FILE))
		review_restore();
	else if (file_exists(RECOVERY_SIGNAL_FILE))
		note_restore(RECOVERY_SIGNAL_FILE);
	else if (file_exists(BACKUP_LABEL_FILE))
		note_restore(BACKUP_LABEL_FILE);
	/* Processes to come inherit what is known, and need not look. */
	(void) outbox_restored_as();
}

const char *
outbox_restored_as(void)
{
	if (!known)
		(void) read_file();
	known = true;
	return restored ? id : NULL;
}
