/*-------------------------------------------------------------------------
 *
 * waitset.c
 *		The one place where the dispatcher waits.
 *
 * See waitset.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"

#include "compat.h"
#include "worker/waitset.h"

static WaitEventSet *wait_set = NULL;
static sigset_t blocked;

void
outbox_waitset_init(int transport_fd)
{
	wait_set = outbox_create_wait_set(3);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, transport_fd, NULL, NULL);

	/* Everything but what only ever means that this process is broken. */
	sigfillset(&blocked);
	sigdelset(&blocked, SIGSEGV);
	sigdelset(&blocked, SIGBUS);
	sigdelset(&blocked, SIGILL);
	sigdelset(&blocked, SIGFPE);
	sigdelset(&blocked, SIGABRT);
	sigdelset(&blocked, SIGTRAP);
}

void
outbox_signals_block(void)
{
	sigprocmask(SIG_SETMASK, &blocked, NULL);
}

void
outbox_signals_open(void)
{
	sigprocmask(SIG_SETMASK, &UnBlockSig, NULL);
}

void
outbox_wait(long timeout_ms)
{
	WaitEvent	events[3];
	int			n;

	outbox_signals_open();
	n = WaitEventSetWait(wait_set, timeout_ms, events, lengthof(events), PG_WAIT_EXTENSION);
	for (int i = 0; i < n; i++)
	{
		if (events[i].events & WL_LATCH_SET)
			ResetLatch(MyLatch);
	}
}
