/*
 * config.h - the options of zshardd: one table of rows for the file, the command line, --help, the
 * check and the installed example.
 */
#ifndef ZSD_CONFIG_H
#define ZSD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/opt.h"
#include "daemon/run/settings.h"

/** The rows, in the order of the struct. In the file their names have '_' for '-'. */
const struct zb_opt *zsd_options(void);

/**
 * Precedence: defaults, then the file (--config, if given), then the command line, where the last
 * value of an option counts. Called before threads start, and at each reload with the same argv,
 * which must outlive *config. A failure leaves *config undefined.
 *
 * @return 0; -EINVAL, or the error of opening the file (-ENOENT, -EACCES ...): err has the message,
 *         with file and line if there is one
 *         1: --help or --version was asked for: *ret_text has what to print (a static buffer)
 *         2: --check-config, and all options are right; 3: --fsck, the same; 4: --retire, 5: --shrink, the same
 */
int zsd_config_load(struct zsd_config *config, int argc, char **argv, const char **ret_text,
                    struct zb_err *err);

#endif
