/*-------------------------------------------------------------------------
 *
 * interrupt.c
 *		How the launcher and the dispatchers are asked to end.
 *
 * See interrupt.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <signal.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"

#include "worker/interrupt.h"

static volatile sig_atomic_t working = false;

/* In a signal handler. */
static void
cancel_work(void)
{
	if (working)
	{
		QueryCancelPending = true;
		InterruptPending = true;
	}
	SetLatch(MyLatch);
}

static void
handle_sigterm(SIGNAL_ARGS)
{
	int			save_errno = errno;

	ShutdownRequestPending = true;
	cancel_work();
	errno = save_errno;
}

static void
handle_sigint(SIGNAL_ARGS)
{
	int			save_errno = errno;

	cancel_work();
	errno = save_errno;
}

void
outbox_interrupts_before_connection(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, handle_sigint);
	BackgroundWorkerUnblockSignals();
}

void
outbox_interrupts_init(void)
{
	pqsignal(SIGTERM, handle_sigterm);
}

void
outbox_work_begin(void)
{
	working = true;
}

void
outbox_work_end(void)
{
	working = false;
	/* InterruptPending may stay: whoever serves it finds nothing to do. */
	QueryCancelPending = false;
	/* A wait inside the work, for a lock or a page, may have swallowed somebody's ring. */
	SetLatch(MyLatch);
}
