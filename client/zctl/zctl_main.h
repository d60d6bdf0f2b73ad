/*
 * zctl_main.h - zctl as a function, for main() and for tests.
 */
#ifndef ZCTL_MAIN_H
#define ZCTL_MAIN_H

#include "client/zctl/base/zctl.h"

/** All commands, sorted by name. */
const struct zctl_cmd *const *zctl_commands(size_t *ret_count);

/** Runs the whole program. Returns the exit status. */
int zctl_main(int argc, char **argv, FILE *out, FILE *err);

#endif
