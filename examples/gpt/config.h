/*
 * config.h - a DeepSpeed file for zgpt: what the command line does not say, it says.
 *
 * MODEL. The file is read when the ranks are known (zc_config.h). Each value of it that a flag has,
 * too, becomes the flag's, unless the flag was given: a flag wins, and a line says so. What has no
 * flag stays in the options, with which the engine is opened. Lines go to `people`; NULL: nobody.
 */
#ifndef GPT_CONFIG_H
#define GPT_CONFIG_H

#include <stdio.h>

#include "base/err.h"
#include "client/zero/zc_config.h"
#include "examples/gpt/args.h"

/**
 * Reads args->config into args, and checks them anew.
 *
 * @return 0, and *ret is to be freed by zc_zero_config_free(); or err has a sentence: as
 *         zc_zero_config_load() and gpt_args_check()
 */
int gpt_config_apply(struct zc_zero_config **ret, struct gpt_args *args, uint32_t ranks,
                     FILE *people, struct zb_err *err);

#endif
