/*-------------------------------------------------------------------------
 *
 * interrupt.c
 *		How workers are asked to end, to cancel what they do, and to read
 *		their settings again.
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
static bool dies_in_work = false;

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

	if (working && dies_in_work)
	{
		die(postgres_signal_arg);
		return;
	}
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
outbox_interrupts_init(bool ends_in_work)
{
	dies_in_work = ends_in_work;
	pqsignal(SIGTERM, handle_sigterm);
}

void
outbox_interrupts_admit(void)
{
	working = true;
}

void
outbox_interrupts_refuse(void)
{
	working = false;
	/* InterruptPending may stay: whoever serves it finds nothing to do. */
	QueryCancelPending = false;
	/* A request to end that nothing in the work has served is one to the loop. */
	if (ProcDiePending)
		ShutdownRequestPending = true;
}
