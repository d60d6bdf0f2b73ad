/*
 * plugin.h - parts of zshard in shared objects of their own, so that the rest does not depend on
 * their libraries: the backend for MPI, the devices of CUDA.
 *
 * MODEL. A plugin is a shared object of this build that exports one table. It is loaded when it is
 * first needed and never unloaded: neither MPI nor CUDA survives that. The loader checks that the
 * table is of this build before it calls anything in it.
 *
 * SEARCH PATH. Only $ZSHARD_PLUGINS, if it is set. Otherwise first the installed place (zshard/
 * next to the library that this is linked into, or next to that of a program with the same
 * prefix), then the place in a build (lib/ next to the program's bin/).
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
