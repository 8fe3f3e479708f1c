/*-------------------------------------------------------------------------
 *
 * poller.h
 *		The one descriptor that stands for every socket of this library.
 *
 * Wishes are collected and their net change is told to the kernel only when
 * the caller is about to sleep (outbox_poller_flush): a socket that wanted to
 * write and then wants to read again costs no system call, and one that
 * nobody wants for the moment stays registered.  Level-triggered.
 *
 * Process: the dispatcher.  Single-threaded.  Nothing here waits.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_POLLER_H
#define OUTBOX_HTTP_POLLER_H

#include <stdbool.h>

#define OUTBOX_POLL_IN 1
#define OUTBOX_POLL_OUT 2
#define OUTBOX_POLL_ERROR 4		/* only ever reported, never asked for */

/* Embedded in whoever owns a socket; told what its socket is ready for. */
typedef struct OutboxPolled
{
	void		(*ready) (struct OutboxPolled *owner, int fd, unsigned events);

	/* Somebody else closes it; NULL if that needs no answer.  From within libcurl. */
	void		(*closed) (struct OutboxPolled *owner, int fd);
} OutboxPolled;

/* NULL, or a static message that says what failed. */
extern const char *outbox_poller_open(void);
extern void outbox_poller_close(void);

/* Readable when outbox_poller_dispatch() has something to do. */
extern int	outbox_poller_fd(void);

/*
 * A descriptor is new under this number: whatever was known of the number is
 * about one that has been closed.  False: out of memory.
 */
extern bool outbox_poller_opened(int fd);

/* The descriptor has been closed, or its closing is the next thing to happen. */
extern void outbox_poller_closed(int fd);

/* Stop watching a descriptor that somebody else may close without a word. */
extern void outbox_poller_drop(int fd);

/* Have owner told of these events from the next flush on.  False: out of memory. */
extern bool outbox_poller_want(int fd, unsigned events, OutboxPolled *owner);

/* Nobody wants to hear of it for the moment, but the same owner soon will. */
extern void outbox_poller_rest(int fd);

/* Is somebody waiting for it? */
extern bool outbox_poller_wanted(int fd);

/* Who is told of it, or NULL. */
extern OutboxPolled *outbox_poller_owner(int fd);

/* Does the kernel watch it already? */
extern bool outbox_poller_registered(int fd);

/* Tell the kernel what has changed.  To be called before sleeping on the descriptor. */
extern void outbox_poller_flush(void);

/* Has nothing changed since? */
extern bool outbox_poller_is_flushed(void);

/* Tell the owners of the sockets that are ready, without waiting.  Returns how many there were. */
extern int	outbox_poller_dispatch(void);

/* The same until every socket that was ready at the call has had its turn. */
extern void outbox_poller_dispatch_all(void);

#endif							/* OUTBOX_HTTP_POLLER_H */
