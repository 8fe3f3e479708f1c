/*-------------------------------------------------------------------------
 *
 * condition.h
 *		A condition over OLD and NEW where there is but one of them.
 *
 * PostgreSQL does not take OLD in the WHEN condition of an INSERT trigger,
 * nor NEW in that of a DELETE trigger; PL/pgSQL lets them be NULL there.  One
 * condition for all triggers of a watched table is to do the same.
 *
 * Pure but for the scanner's settings; allocates in the current memory
 * context.  Raises syntax_error for what the scanner cannot read.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_CONDITION_H
#define OUTBOX_CONDITION_H

/*
 * The condition with NULL, of the type of the table's rows, for the row that
 * is missing: "old" or "new".  relation is the table's qualified, quoted name.
 */
extern char *outbox_condition_without(const char *condition, const char *row, const char *relation);

#endif							/* OUTBOX_CONDITION_H */
