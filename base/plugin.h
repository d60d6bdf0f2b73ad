/*
 * plugin.h - parts of zshard that are files of their own, so that nothing else needs what they
 * need: MPI's backend, CUDA's devices.
 *
 * MODEL. A plugin is a shared object of this build that exports one table. It is looked for when it
 * is first wanted and never unloaded: neither MPI nor CUDA survives that. Whoever loads it checks
 * that the table is one of this build before anything of it is called.
 *
 * WHERE. In $ZSHARD_PLUGINS alone, where that is set. Else as installed (in zshard/ beside the
 * library that this is linked into, or where a program of the same prefix finds that), else as in a
 * build (in lib/ beside the program's bin/).
 */
#ifndef ZB_PLUGIN_H
#define ZB_PLUGIN_H

#include <limits.h>

#include "base/err.h"

struct zb_plugin {
    void *library;     /* of dlopen() */
    const void *table; /* what it exports */
    char path[PATH_MAX + 64];
};

/**
 * @param file    its name, without a folder
 * @param symbol  of the table
 * @param flags   of dlopen()
 * @return 0; -ENOENT there is no such file, -ELIBACC it cannot be loaded, -ENOEXEC it exports no
 *         such table
 */
int zb_plugin_load(struct zb_plugin *ret, const char *file, const char *symbol, int flags,
                   struct zb_err *err);

#endif
