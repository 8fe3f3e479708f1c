/*-------------------------------------------------------------------------
 *
 * errand.c
 *		What one CALL outbox.deliver_now() asks for, and what has become of it.
 *
 * See errand.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "shared/errand.h"
#include "shared/lockout.h"
#include "shared/shmem.h"

static OutboxErrand *mine = NULL;
static dsm_handle handle_of_mine = DSM_HANDLE_INVALID;

Size
outbox_errand_size(void)
{
	return MAXALIGN(sizeof(OutboxErrand)) + (outbox_shared == NULL ? outbox_shmem_single_size() : 0);
}

OutboxErrand *
outbox_errand_make(dsm_segment *segment, const char *caller)
{
	OutboxErrand *errand = dsm_segment_address(segment);

	memset(errand, 0, sizeof(*errand));
	errand->size = outbox_errand_size();
	errand->dboid = MyDatabaseId;
	errand->session = MyProcPid;
	namestrcpy(&errand->caller, caller);
	SpinLockInit(&errand->mutex);
	for (int i = 0; i < lengthof(errand->counts); i++)
		pg_atomic_init_u64(&errand->counts[i], 0);
	if (outbox_shared == NULL)
	{
		errand->memory_at = MAXALIGN(sizeof(OutboxErrand));
		outbox_shmem_single_init((OutboxShared *) ((char *) errand + errand->memory_at), MyDatabaseId);
	}
	return errand;
}

OutboxErrandFate
outbox_errand_fate(OutboxErrand *errand, char *text)
{
	OutboxErrandFate fate;

	SpinLockAcquire(&errand->mutex);
	fate = errand->fate;
	memcpy(text, errand->text, OUTBOX_ERRAND_TEXT);
	SpinLockRelease(&errand->mutex);
	return fate;
}

bool
outbox_errand_join(dsm_handle handle)
{
	dsm_segment *segment = dsm_attach(handle);

	if (segment == NULL || ((OutboxErrand *) dsm_segment_address(segment))->size != outbox_errand_size())
		return false;
	mine = dsm_segment_address(segment);
	handle_of_mine = handle;
	if (mine->memory_at != 0)
		outbox_shmem_use((OutboxShared *) ((char *) mine + mine->memory_at));
	outbox_lockout_exempt(mine->session);
	outbox_counters_tally(mine->counts);
	return true;
}

dsm_handle
outbox_errand_handle(void)
{
	return handle_of_mine;
}

Oid
outbox_errand_database(void)
{
	return mine->dboid;
}

bool
outbox_errand_runs(void)
{
	return mine != NULL;
}

bool
outbox_errand_skips(void)
{
	return mine != NULL && mine->skip_ahead;
}

int
outbox_errand_max_rounds(void)
{
	return mine->max_rounds;
}

bool
outbox_errand_is_heard(void)
{
	return mine->memory_at == 0;
}

const char *
outbox_errand_caller(void)
{
	return NameStr(mine->caller);
}

void
outbox_errand_say(OutboxErrandFate fate, const char *text)
{
	int			len = 0;

	if (mine == NULL)
		return;
	/* No character is cut in half. */
	if (text != NULL)
		len = pg_mbcliplen(text, strlen(text), OUTBOX_ERRAND_TEXT - 1);
	SpinLockAcquire(&mine->mutex);
	if (mine->fate == OUTBOX_ERRAND_UNDERWAY)
	{
		mine->fate = fate;
		memcpy(mine->text, text == NULL ? "" : text, len);
		mine->text[len] = '\0';
	}
	SpinLockRelease(&mine->mutex);
}

/* Only this process's dispatcher changes it: no need for the lock. */
bool
outbox_errand_is_over(void)
{
	return mine != NULL && mine->fate != OUTBOX_ERRAND_UNDERWAY;
}
