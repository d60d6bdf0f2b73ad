/*
 * config.h - a DeepSpeed file for zgpt: values that the command line does not give.
 *
 * MODEL. The file is read when the number of ranks is known (zc_config.h). A value for which there
 * is a flag sets that flag, unless the flag was given: then the flag wins, and a line says so.
 * Values without a flag stay in the options for the engine. Lines are written to `people`, unless
 * it is NULL.
 */
#ifndef GPT_CONFIG_H
#define GPT_CONFIG_H

#include <stdio.h>

#include "base/err.h"
#include "client/zero/zc_config.h"
#include "examples/gpt/args.h"

/**
 * Reads args->config into args, and checks args again.
 *
 * @return 0: free *ret with zc_zero_config_free(); or an error of zc_zero_config_load() or
 *         gpt_args_check(), with a message in err
 */
int gpt_config_apply(struct zc_zero_config **ret, struct gpt_args *args, uint32_t ranks,
                     FILE *people, struct zb_err *err);

#endif
