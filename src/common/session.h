/*-------------------------------------------------------------------------
 *
 * session.h
 *		Acting as the extension's owner, and statements that are planned once.
 *
 * Promises: the one way to run SPI with the owner's rights and the one way
 * to keep a plan.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SESSION_H
#define OUTBOX_SESSION_H

#include "compat.h"
#include "outbox.h"

#include "executor/spi.h"

/*
 * A statement with its kept plan.  Declared static with sql, nargs and
 * argtypes set; plan is filled in at first use and lives as long as the
 * process.  The text qualifies every relation, function and operator
 * (OPERATOR(pg_catalog.=)), because it runs under the caller's search_path.
 */
typedef struct OutboxPlan
{
	const char *sql;
	int			nargs;
	Oid			argtypes[24];
	SPIPlanPtr	plan;
} OutboxPlan;

typedef struct OutboxSecurity
{
	Oid			user;
	int			context;
	int			nestlevel;		/* of settings; 0 if none was changed */
} OutboxSecurity;

/*
 * Switch to the owner of schema outbox.  Raises undefined_object with a hint
 * if the extension is not installed in this database.  An error in between
 * restores the caller's rights by the (sub)transaction's abort.
 */
extern void outbox_become_owner(OutboxSecurity *saved);
extern void outbox_become_caller(const OutboxSecurity *saved);

/*
 * The same for a statement that writes: triggers on the table, which is
 * locked for it, do not fire unless they are ENABLE ALWAYS, which takes the
 * table's owner.  Whoever was granted TRIGGER or REFERENCES can make the
 * others, and they would run with the owner's rights.
 */
extern void outbox_become_owner_to_write(OutboxSecurity *saved, const char *table);

/*
 * For workers, which connect as the bootstrap superuser: go on as the owner,
 * who need not be a superuser any more and could have its index expressions,
 * checks and triggers evaluated here; from the beginning of a transaction
 * until it has committed, since what is deferred runs last.  An abort gives
 * the worker its own rights back.  Without the extension nothing changes.
 */
extern void outbox_act_as_owner(void);
extern void outbox_act_as_worker(void);

/*
 * Run a statement by its kept plan and raise unless SPI answers with expected
 * (SPI_OK_...).  Must be connected to SPI.  Returns SPI_processed.
 */
extern uint64 outbox_execute(OutboxPlan *plan, Datum *values, const char *nulls,
							 bool read_only, long count, int expected);

/* A text parameter of a statement; NULL and the empty string are NULL. */
extern void outbox_bind_text(Datum *values, char *nulls, int i, const char *value);

/*
 * Values do not get into the server's log by what shows plans there,
 * auto_explain and debug_print_plan and its kin: as workers have it always
 * (worker/settings.c), for somebody else's functions, whose plans are theirs to
 * see; and for our own statements, which are not logged at all.  Both are in
 * force until that level of settings ends which is the innermost one now
 * (NewGUCNestLevel(); a function with SET has one).
 */
extern void outbox_hide_values(void);
extern void outbox_stay_unseen(void);

/* The same as outbox_execute() for values that the server's log must not show, whatever it is told. */
extern uint64 outbox_execute_unseen(OutboxPlan *plan, Datum *values, const char *nulls,
									bool read_only, long count, int expected);

/*
 * The same as outbox_execute() for a look-up of a few rows, which goes by an
 * index whatever the table's statistics say: a plan that was made while the
 * table was empty or small is kept however large it has become since.
 */
extern uint64 outbox_execute_by_index(OutboxPlan *plan, Datum *values, const char *nulls, long count);

/* Was a procedure called where it cannot commit: in a transaction block, or from a function? */
extern bool outbox_called_in_transaction_block(FunctionCallInfo fcinfo);

/*
 * Raise read_only_sql_transaction, with what to do about it, in a transaction
 * that may not write and on a standby.  function is how callers write it.
 */
extern void outbox_require_writable(const char *function);

/*
 * For error_context_stack, while a statement runs that a snapshot of
 * REPEATABLE READ or above may be too old for: its serialization_failure says
 * what to do.  The argument is not used.
 */
extern void outbox_hint_at_snapshot(void *arg);

/* OID of a relation in schema outbox, looked up by name.  Raises if it is missing and !missing_ok. */
extern Oid	outbox_relation_oid(const char *name, bool missing_ok);

/* There is no schema outbox here, or not ours: undefined_object, with a hint. */
pg_noreturn extern void outbox_raise_not_installed(void);

#endif							/* OUTBOX_SESSION_H */
