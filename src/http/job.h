/*-------------------------------------------------------------------------
 *
 * job.h
 *		One easy handle: its options, what its callbacks found out, and what
 *		its result means.
 *
 * Promises: the one place that turns a target into options of libcurl, and a
 * CURLcode into a failure.
 *
 * Process: the dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_JOB_H
#define OUTBOX_HTTP_JOB_H

#include "http/addresses.h"
#include "http/engine.h"

/* libcurl tries several addresses at once, but never so many. */
#define OUTBOX_JOB_SOCKETS 8

typedef struct OutboxJob
{
	CURL	   *easy;
	CURLU	   *url;			/* its target's, taken apart once for all requests */
	OutboxEngine *engine;
	HttpTarget *target;
	void		(*done) (struct OutboxJob *job, CURLcode result);

	/* It is started, for the first time or again: the request is to be sent from its beginning.  NULL: nobody minds. */
	void		(*begins) (struct OutboxJob *job);

	/* Has nothing of an answer come?  Where this is set a job whose kept connection fails is tried once more. */
	bool		(*is_unanswered) (const struct OutboxJob *job);
	/*
	 * libcurl closes its connection, on which this has come that it has not
	 * read: it could not write the rest of the request.  Without TLS only.
	 */
	void		(*last_words) (struct OutboxJob *job, const char *data, size_t len);
	int			reserved;		/* descriptors set aside until its socket is open */
	bool		connected;		/* it has had a connection, new or kept */
	bool		resent;			/* libcurl sent it a second time */
	long		sent;			/* bytes sent before the present connection */
	bool		opened;			/* a socket was opened for it since it last had a connection */
	int			sockets[OUTBOX_JOB_SOCKETS];	/* the latest that were */
	int			nsockets;		/* how many there were altogether */
	int			fd;				/* the socket of its connection, -1: not known */
	bool		reused;			/* its connection had been used before */
	int64_t		acknowledged;	/* bytes on that before the request; -1: not known */
	bool		spoken_to;		/* something came on it after the request, and then its end */
	bool		afresh;			/* stopped, to go on over a new connection */
	bool		fresh_only;		/* libcurl was told to use no kept connection */
	bool		forbids_reuse;	/* libcurl was told not to keep its connection */
	bool		shared;			/* its connection carries others beside it */
	bool		alone;			/* it is to share its connection with nobody */
	int			generation;		/* of connections that may be shared: see outbox_job_use_generation() */
	bool		blocked;		/* the filter refused an address */
	int			shortage;		/* why this machine refused a socket, an errno; 0: it did not */
	OutboxTrials trials;		/* what it is being connected to */
	bool		refused;		/* it stands in its engine's list of those that were refused a socket */
	struct OutboxJob *next_refused;
	bool		passed_over;	/* an address that was silent before was left out */
	bool		last_resort;	/* none is left out any more */
	unsigned	settings;		/* which configuration its options come from */
	char		error[CURL_ERROR_SIZE];
} OutboxJob;

/*
 * Make job->easy ready for a target: create it with every option that stays,
 * or bring it up to date.  False: out of memory, or options that libcurl
 * refuses, in which case job->error says so and trying again is of no use.
 */
extern bool outbox_job_prepare(OutboxJob *job, HttpTarget *target);

/* Did libcurl take a further option?  The same holds of job->error if not. */
extern bool outbox_job_accepts(OutboxJob *job, CURLcode result);

/* Hand a job to libcurl, take it back (done or not), dispose of it. */
extern bool outbox_job_start(OutboxEngine *engine, OutboxJob *job, int descriptors);
extern void outbox_job_stop(OutboxJob *job);
extern void outbox_job_free(OutboxJob *job);

/*
 * libcurl is done with it: called by the engine, calls job->done; or starts it
 * once more, over a new connection, because kept ones were found dead.
 */
extern void outbox_job_finished(OutboxJob *job, CURLcode result);

/*
 * It was refused a socket: have libcurl go on with the next address at once.
 * Not from within one of its callbacks.
 */
extern void outbox_job_hurry(OutboxJob *job);

/* Its connection may not be used again.  From a callback, while the job has it. */
extern void outbox_job_forbid_reuse(OutboxJob *job);

/* The same where it carries other requests beside it, which go on. */
extern void outbox_job_doom_connection(OutboxJob *job);

/* Its connection carries other requests beside it: that of HTTP/2 does. */
extern void outbox_job_set_shared(OutboxJob *job);
extern bool outbox_job_is_shared(const OutboxJob *job);

/* Did the receiver end its stream of HTTP/2, by itself; and that without an error? */
extern bool outbox_job_was_reset(const OutboxJob *job);
extern bool outbox_job_was_closed_cleanly(const OutboxJob *job);

/* Does nobody acknowledge the request, which went out on a kept connection? */
extern bool outbox_job_is_unheard(const OutboxJob *job);

/* Stop a job whose kept connection is dead and start it over a new one.  False: there is no room for that. */
extern bool outbox_job_again(OutboxJob *job);

/*
 * Start a job that has finished once more, over a new connection that it
 * shares with nobody.  False: there is no room for one.
 */
extern bool outbox_job_again_alone(OutboxJob *job);

/*
 * Share connections with jobs that use the same generation only.  libcurl
 * cannot be told to let one go that is busy, but not to use it for these.
 */
extern CURLcode outbox_job_use_generation(OutboxJob *job, int generation);

/*
 * What has come on a kept connection is no answer to the request: it left
 * before that can have arrived.  Then the job is to be stopped, and goes on
 * over a new connection.
 */
extern bool outbox_job_came_unasked(OutboxJob *job);

/* What a result means; answered: some of an answer had come. */
extern HttpFailure outbox_job_failure(const OutboxJob *job, CURLcode result, bool answered);

/*
 * Did the receiver refuse by an alert of TLS?  In TLS 1.3 it may do so, for
 * want of a client certificate say, when the handshake is over for us.
 */
extern bool outbox_job_was_alerted(const OutboxJob *job);

/* What this machine lacks, where the result means that nothing left it. */
extern HttpShortage outbox_job_shortage(const OutboxJob *job, CURLcode result);

/* One line about a failure and the result it comes from. */
extern const char *outbox_job_message(const OutboxJob *job, HttpFailure failure, CURLcode result);

/* Have libcurl judge no connect timeout of a job until it is let again. */
extern void outbox_job_hold_timeout(OutboxJob *job, bool hold);

#endif							/* OUTBOX_HTTP_JOB_H */
