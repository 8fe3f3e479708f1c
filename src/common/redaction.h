/*-------------------------------------------------------------------------
 *
 * redaction.h
 *		The setting outbox.redact_function, and what it makes of error texts.
 *
 * A text of somebody else's that is about to be kept goes through that
 * function first, which runs with its owner's rights (user_function.h).
 * Where it cannot be called, or fails, the text is withheld: something else
 * is kept that says so, and nothing of the text or of the error, which may
 * quote it.
 *
 * Process: hooks and outbox_redaction_is_set() any; outbox_redact() any but
 * the dispatcher and the settler, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_REDACTION_H
#define OUTBOX_REDACTION_H

#include "outbox.h"

#include "utils/guc.h"

/* The function may take so long for a text, of which so many bytes are kept while it is set. */
#define OUTBOX_REDACTION_TIMEOUT_MS 1000
#define OUTBOX_REDACTION_LEN 4096

/* What is kept instead of a text that is withheld; the second one with why. */
#define OUTBOX_TEXT_WITHHELD "withheld: could not be redacted"
#define OUTBOX_TEXT_WITHHELD_BECAUSE OUTBOX_TEXT_WITHHELD ", %s"

extern bool outbox_redaction_is_set(void);

/*
 * What is to be kept of a text: itself if nothing is set.  NULL for NULL, and
 * if that is what the function returns.  In a backend a cancellation by its
 * user is raised.
 */
extern char *outbox_redact(char *text);

/* The same for the text of a failure, which has one whatever the function returns. */
extern char *outbox_redact_failure(char *text);

extern bool outbox_check_redact_function(char **newval, void **extra, GucSource source);
extern void outbox_assign_redact_function(const char *newval, void *extra);

#endif							/* OUTBOX_REDACTION_H */
