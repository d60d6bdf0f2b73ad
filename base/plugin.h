/*
 * plugin.h - loads parts of zshard that are shared objects of their own, so that the rest does not
 * depend on their libraries: the MPI backend, the CUDA devices.
 *
 * MODEL. A plugin is a shared object of this build that exports one table. It is loaded when first
 * needed and never unloaded, since neither MPI nor CUDA survives that. The loader checks that the
 * table is of this build before it calls anything in it.
 *
 * SEARCH PATH. If $ZSHARD_PLUGINS is set, only that folder. Otherwise first the installed one
 * (zshard/ next to the library that contains this code, or next to the library of a program with
 * the same prefix), then the one of a build (lib/ next to the program's bin/).
 */
#ifndef ZB_PLUGIN_H
#define ZB_PLUGIN_H

#include <limits.h>

#include "base/err.h"

struct zb_plugin {
    void *library;     /* of dlopen() */
    const void *table; /* the exported table */
    char path[PATH_MAX + 64];
};

/**
 * @param file    file name, without a folder
 * @param symbol  of the table
 * @param flags   of dlopen()
 * @return 0; -ENOENT no such file, -ELIBACC it cannot be loaded, -ENOEXEC it exports no such
 *         table
 */
int zb_plugin_load(struct zb_plugin *ret, const char *file, const char *symbol, int flags,
                   struct zb_err *err);

#endif
