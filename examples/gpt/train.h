/*
 * train.h - a training run, from arguments to an exported file.
 */
#ifndef GPT_TRAIN_H
#define GPT_TRAIN_H

#include <signal.h>
#include <stdio.h>

#include "examples/gpt/args.h"

/**
 * Runs it, as one of the ranks. Every rank calls it with the same arguments.
 *
 * With keep, the job's last step is committed at the end, whatever the end is, and a run with
 * resume goes on behind the newest step that is left: losses and weights are those of one that was
 * never interrupted, bit for bit at the same world size. Steps that are run again are told again.
 * Where `steps` are made already, it only exports. -EEXIST: the job is another run's (note.h).
 *
 * @param stop    set by a signal handler: the step in progress is finished, on every rank, and
 *                committed where the job is kept; the weights are exported where asked, and the run
 *                ends with -EINTR: it is not what was asked for, and a launcher should see that
 * @param people  where rank 0 says what happens
 * @return 0; else err has the message, and the code is one of those that zclient.h, data.h, gpt.h
 *         and weights.h name
 */
int gpt_train(const struct gpt_args *args, const volatile sig_atomic_t *stop, FILE *people,
              struct zb_err *err);

#endif
