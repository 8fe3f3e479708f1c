/*-------------------------------------------------------------------------
 *
 * sockets.h
 *		The sockets of this library, and how many descriptors they may take.
 *
 * libcurl opens sockets when it likes, and closes some without a word.  So
 * what may be started is decided before, by what it will need at once; every
 * socket is remembered with its identity, so that one that is gone is not
 * counted for ever; and beyond the budget none is opened at all.
 *
 * Process: the dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_SOCKETS_H
#define OUTBOX_HTTP_SOCKETS_H

#include "http/transport.h"

/* Work out the budget.  False: it would be too small to send anything. */
extern bool outbox_sockets_start(const HttpTransportOptions *options);
extern void outbox_sockets_end(void);

/* The same for other options, later. */
extern void outbox_sockets_configure(const HttpTransportOptions *options);

/* How many exchanges may be out at once, as far as descriptors go. */
extern int	outbox_sockets_capacity(void);

/*
 * How many descriptors an exchange may need until its connection is open: a
 * lookup takes some for a moment, unless the target has been reached before,
 * when a kept connection or libcurl's memory of the address serves as a rule.
 */
extern int	outbox_sockets_needed(const HttpTarget *target, bool reached);

/* Are so many more within the budget? */
extern bool outbox_sockets_fit(int descriptors);

/* Set descriptors aside for what is about to start, or give them back (negative). */
extern void outbox_sockets_reserve(int descriptors);

/* Could not even one descriptor, or as many as a lookup needs, be opened now? */
extern bool outbox_sockets_are_out(void);

/*
 * Open a socket for a target, known to the poller from now on.  -1: none;
 * *shortage is the errno that says what this machine has none of, or 0 if it
 * only does not know this kind of address.
 */
extern int	outbox_socket_open(int family, int type, int protocol, const HttpTarget *target, int *shortage);
extern void outbox_socket_close(int fd);

/* Is that number one of our sockets, as far as we know?  Or beyond doubt, by asking the kernel. */
extern bool outbox_socket_is_open(int fd);
extern bool outbox_socket_is_ours(int fd);

/* Take a socket over from libcurl, which is about to close it and may not. */
extern void outbox_socket_adopt(int fd);
extern bool outbox_socket_is_adopted(int fd);

/*
 * Forget who opened a target's connections.  end: shut those down that nobody
 * waits for, and those of targets forgotten before.  Returns how many those
 * were.
 */
extern int	outbox_sockets_forget(const HttpTarget *target, bool end);

/* Shut a target's connections down that nobody waits for: one of them was found dead, and so may they be. */
extern void outbox_sockets_distrust(const HttpTarget *target);

#endif							/* OUTBOX_HTTP_SOCKETS_H */
