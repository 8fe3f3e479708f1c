/*-------------------------------------------------------------------------
 *
 * connection_map.h
 *		Which socket carries which of libcurl's connections.
 *
 * libcurl says by which addresses and ports a request is about to travel,
 * but not by which socket, and keeps what it has no more use for in a pool
 * that it does not show.  Whoever wants to look at a kept connection before it
 * is used, or to end one, finds its socket here.
 *
 * Process: the dispatcher.  Single-threaded.  Promises nothing of sockets that
 * nobody noted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_CONNECTION_MAP_H
#define OUTBOX_HTTP_CONNECTION_MAP_H

#include <stdbool.h>
#include <stdint.h>

/* What tells connections apart; those over one unix socket have the same. */
extern uint64_t outbox_connection_name(const char *ip, int port, const char *local_ip, int local_port);

/* A socket carries a connection; or its number means another one now, or none. */
extern void outbox_connection_note(int fd, uint64_t name);
extern void outbox_connection_unnote(int fd);

/* The first socket from fd on that carries a connection of that name; -1: none. */
extern int	outbox_connection_socket(uint64_t name, int fd);

/* It carries several requests at once (HTTP/2). */
extern void outbox_connection_set_shared(int fd);
extern bool outbox_connection_is_shared(int fd);

/*
 * What is sent on a socket from now on may wait for more, and goes out when
 * all of them are let go: several requests on one connection, each in several
 * small pieces, make few packets so.
 */
extern void outbox_connection_gather(int fd);
extern void outbox_connections_let_go(void);

/* It is to end when nobody waits for it any more, and carries nothing more until then. */
extern void outbox_connection_doom(int fd);
extern bool outbox_connection_is_doomed(int fd);

/* The job whose request it carries by itself; NULL: none. */
extern void outbox_connection_set_user(int fd, void *job);
extern void *outbox_connection_user(int fd);

/* A job is done with a socket, whose number may mean another's by now. */
extern void outbox_connection_leave(int fd, const void *job);

/* Nothing has come on it, not even an end, that has not been read. */
extern bool outbox_connection_is_quiet(int fd);

/* No request may use it again, and nothing is read from it any more. */
extern void outbox_connection_end(int fd);

/*
 * How many bytes the other side's kernel has acknowledged so far; -1 where
 * that cannot be known, as of a unix socket.
 */
extern int64_t outbox_connection_acknowledged(int fd);

/* Has its kernel acknowledged nothing since it had acknowledged so many, though ours sent again? */
extern bool outbox_connection_is_unheard(int fd, int64_t acknowledged);

/*
 * A request is about to be sent: has its receiver said anything since?  libcurl
 * does not tell of what is less than a line.  What TLS has decoded is told by
 * outbox_connection_spoke(); false where nothing can be known, as of a unix
 * socket without TLS.
 */
extern void outbox_connection_listen(int fd);
extern void outbox_connection_spoke(int fd);
extern bool outbox_connection_has_spoken(int fd, bool tls);

/* Forget everything, at shutdown. */
extern void outbox_connection_reset(void);

#endif							/* OUTBOX_HTTP_CONNECTION_MAP_H */
