/*
 * conformance.h - checks that a backend keeps the promises of struct zc_comm_ops, run by all of its
 * ranks at once.
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "client/zero/zc_zero.h"

/** Called by every rank. 0, or -1 with an error message. */
int comm_conformance(struct zc_comm *comm, char *why, size_t why_bytes);

#endif
