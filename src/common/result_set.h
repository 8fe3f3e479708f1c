/*-------------------------------------------------------------------------
 *
 * result_set.h
 *		Functions that return their rows all at once.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RESULT_SET_H
#define OUTBOX_RESULT_SET_H

#include "fmgr.h"
#include "nodes/execnodes.h"

/*
 * Prepare to return a set of rows with so many columns: puts them into
 * setResult with setDesc.  The row type is taken from the caller, who knows
 * it, instead of from the catalog.
 */
extern ReturnSetInfo *outbox_begin_result_set(FunctionCallInfo fcinfo, int columns);

#endif							/* OUTBOX_RESULT_SET_H */
