/*
 * train.h - a training run, from arguments to an exported file.
 */
#ifndef GPT_TRAIN_H
#define GPT_TRAIN_H

#include <signal.h>
#include <stdio.h>

#include "examples/gpt/args.h"

/**
 * Runs the training as one of the ranks. Every rank calls it with the same arguments.
 *
 * With keep, the last step is committed at the end, however the run ends. A run with resume
 * continues after the newest available step. Its losses and weights are those of an uninterrupted
 * run, bit for bit at the same world size. Repeated steps are reported again. If `steps` steps have
 * been made already, it only exports. -EEXIST: the job belongs to another run (note.h).
 *
 * @param stop    set by a signal handler. Every rank finishes the step in progress, and commits it
 *                if the job is kept. Weights are exported if requested. The run then returns
 *                -EINTR, so that a launcher can tell it from a complete one
 * @param people  where rank 0 prints its progress
 * @return 0; else a code documented in zclient.h, data.h, gpt.h or weights.h, with a message in err
 */
int gpt_train(const struct gpt_args *args, const volatile sig_atomic_t *stop, FILE *people,
              struct zb_err *err);

#endif
