/*-------------------------------------------------------------------------
 *
 * poller.c
 *		The one descriptor that stands for every socket; see poller.h.
 *
 * The kernel forgets a socket when it is closed, and libcurl closes some
 * without saying so.  Every number therefore has a generation, which an
 * event carries: what the kernel reports of a socket that is gone is dropped.
 *
 *-------------------------------------------------------------------------
 */
#include "http/poller.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef __linux__
#error "the HTTP transport waits with epoll: outbox builds on Linux only"
#endif
#include <sys/epoll.h>

/* Events taken from the kernel at once; what is left over is reported next time. */
#define POLLER_BATCH 256

typedef struct Watched
{
	OutboxPolled *owner;
	uint32_t	generation;
	uint8_t		wanted;
	uint8_t		registered;		/* what the kernel was told last; 0: it does not know the socket */
	bool		dirty;			/* stands in the list of changes */
} Watched;

static int	poll_fd = -1;
static Watched *watched;		/* by descriptor */
static int	nwatched;
static int *changes;			/* descriptors that are dirty; room for nwatched */
static int	nchanges;

const char *
outbox_poller_open(void)
{
	poll_fd = epoll_create1(EPOLL_CLOEXEC);
	return poll_fd >= 0 ? NULL : "could not create an epoll descriptor";
}

void
outbox_poller_close(void)
{
	if (poll_fd >= 0)
		close(poll_fd);
	poll_fd = -1;
	free(watched);
	free(changes);
	watched = NULL;
	changes = NULL;
	nwatched = nchanges = 0;
}

int
outbox_poller_fd(void)
{
	return poll_fd;
}

static bool
reserve(int fd)
{
	int			room = nwatched > 0 ? nwatched : 64;
	Watched    *more;
	int		   *more_changes;

	if (fd < nwatched)
		return true;
	while (room <= fd)
		room *= 2;
	more = realloc(watched, room * sizeof(Watched));
	if (more == NULL)
		return false;
	watched = more;
	more_changes = realloc(changes, room * sizeof(int));
	if (more_changes == NULL)
		return false;
	changes = more_changes;
	memset(watched + nwatched, 0, (room - nwatched) * sizeof(Watched));
	nwatched = room;
	return true;
}

static void
mark_dirty(int fd)
{
	if (watched[fd].dirty || watched[fd].wanted == watched[fd].registered)
		return;
	watched[fd].dirty = true;
	changes[nchanges++] = fd;
}

bool
outbox_poller_opened(int fd)
{
	if (!reserve(fd))
		return false;

	/*
	 * libcurl may have closed the last socket of this number and opened this
	 * one without an intermediate word, in which case its wish still stands.
	 */
	watched[fd].registered = 0;
	watched[fd].generation++;
	mark_dirty(fd);
	return true;
}

void
outbox_poller_closed(int fd)
{
	if (fd >= nwatched)
		return;
	watched[fd].owner = NULL;
	watched[fd].wanted = 0;
	watched[fd].registered = 0;
	watched[fd].generation++;
}

void
outbox_poller_drop(int fd)
{
	struct epoll_event event = {0};

	if (fd >= nwatched)
		return;
	if (watched[fd].registered != 0)
		epoll_ctl(poll_fd, EPOLL_CTL_DEL, fd, &event);
	outbox_poller_closed(fd);
}

bool
outbox_poller_want(int fd, unsigned events, OutboxPolled *owner)
{
	if (!reserve(fd))
		return false;
	watched[fd].owner = owner;
	watched[fd].wanted = events;
	mark_dirty(fd);
	return true;
}

void
outbox_poller_rest(int fd)
{
	if (fd < nwatched)
		watched[fd].wanted = 0;
}

bool
outbox_poller_wanted(int fd)
{
	return fd < nwatched && watched[fd].wanted != 0;
}

OutboxPolled *
outbox_poller_owner(int fd)
{
	return fd < nwatched ? watched[fd].owner : NULL;
}

bool
outbox_poller_registered(int fd)
{
	return fd < nwatched && watched[fd].registered != 0;
}

static void
tell_kernel(int fd)
{
	Watched    *w = &watched[fd];
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.data.u64 = ((uint64_t) w->generation << 32) | (uint32_t) fd;
	if (w->wanted & OUTBOX_POLL_IN)
		event.events |= EPOLLIN | EPOLLRDHUP;
	if (w->wanted & OUTBOX_POLL_OUT)
		event.events |= EPOLLOUT;

	if (w->wanted == 0)
		epoll_ctl(poll_fd, EPOLL_CTL_DEL, fd, &event);
	else if (w->registered == 0)
	{
		if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event) < 0 && errno == EEXIST)
			epoll_ctl(poll_fd, EPOLL_CTL_MOD, fd, &event);
	}
	else if (epoll_ctl(poll_fd, EPOLL_CTL_MOD, fd, &event) < 0 && errno == ENOENT)
		epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);

	/*
	 * A refused registration (no memory, a limit of the kernel) is not
	 * retried: the exchange on that socket ends by its timeout.
	 */
	w->registered = w->wanted;
}

void
outbox_poller_flush(void)
{
	for (int i = 0; i < nchanges; i++)
	{
		Watched    *w = &watched[changes[i]];

		w->dirty = false;

		/* A resting socket stays registered until it becomes a nuisance. */
		if (w->wanted != 0 && w->wanted != w->registered)
			tell_kernel(changes[i]);
	}
	nchanges = 0;
}

bool
outbox_poller_is_flushed(void)
{
	return nchanges == 0;
}

static void
report(const struct epoll_event *event)
{
	int			fd = (int) (uint32_t) event->data.u64;
	Watched    *w = &watched[fd];
	unsigned	events = 0;

	if (w->generation != (uint32_t) (event->data.u64 >> 32))
		return;
	if (event->events & (EPOLLIN | EPOLLRDHUP))
		events |= OUTBOX_POLL_IN;
	if (event->events & EPOLLOUT)
		events |= OUTBOX_POLL_OUT;
	if (w->wanted == 0)
	{
		tell_kernel(fd);
		return;
	}
	events &= w->wanted;
	if (event->events & (EPOLLERR | EPOLLHUP))
		events |= w->wanted | OUTBOX_POLL_ERROR;
	if (events != 0)
		w->owner->ready(w->owner, fd, events);
	else
		mark_dirty(fd);
}

int
outbox_poller_dispatch(void)
{
	struct epoll_event events[POLLER_BATCH];
	int			n = epoll_wait(poll_fd, events, POLLER_BATCH, 0);

	for (int i = 0; i < n; i++)
		report(&events[i]);
	return n > 0 ? n : 0;
}

void
outbox_poller_dispatch_all(void)
{
	/*
	 * The kernel hands ready sockets out in turn, so that so many rounds
	 * reach each of them, and one that never falls silent cannot hold us.
	 */
	for (int rounds = 2 + nwatched / POLLER_BATCH; rounds > 0; rounds--)
		if (outbox_poller_dispatch() == 0)
			break;
}
