/*
 * zctl_main.h - zctl without its process: for main(), and for tests.
 */
#ifndef ZCTL_MAIN_H
#define ZCTL_MAIN_H

#include "client/zctl/base/zctl.h"

/** All commands, sorted by name. */
const struct zctl_cmd *const *zctl_commands(size_t *ret_count);

/** The whole program but for the process: the exit status. */
int zctl_main(int argc, char **argv, FILE *out, FILE *err);

#endif
