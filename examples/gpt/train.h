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
 * @param stop    set by a signal handler: the step in progress is finished, on every rank, the
 *                weights are exported where asked, and the run ends with -EINTR
 * @param people  where rank 0 says what happens
 * @return 0; else err has the sentence, and the code is one of those that zclient.h, data.h, gpt.h
 *         and weights.h name
 */
int gpt_train(const struct gpt_args *args, const volatile sig_atomic_t *stop, FILE *people,
              struct gpt_err *err);

#endif
