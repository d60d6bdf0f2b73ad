#include "base/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

/* The file that contains this code: a library, or the program, for which the loader has no name. */
static void own_file(char *out, size_t bytes)
{
    struct link_map *map = NULL;
    Dl_info info;
    ssize_t n;

    if (dladdr1((void *)(uintptr_t)zb_plugin_load, &info, (void **)&map, RTLD_DL_LINKMAP) != 0 &&
        map && map->l_name && map->l_name[0] != '\0') {
        (void)snprintf(out, bytes, "%s", map->l_name);
        return;
    }
    n = readlink("/proc/self/exe", out, bytes - 1);
    out[n > 0 ? n : 0] = '\0';
}

/* The folder of that file, without a trailing '/'. False: unknown (no /proc). The current folder
 * is never used instead. */
static bool own_folder(char *out, size_t bytes)
{
    char *slash;

    own_file(out, bytes);
    slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
    return slash != NULL;
}

static int plugin_find(const char *file, char *out, size_t bytes, struct zb_err *err)
{
    static const char *const below[] = { "zshard", ZB_PLUGIN_INSTALLED, ".", "../lib" };
    const char *folder = secure_getenv("ZSHARD_PLUGINS"); /* ignored in a setuid program */
    char own[PATH_MAX];

    if (folder && *folder) {
        (void)snprintf(out, bytes, "%s/%s", folder, file);
        return access(out, F_OK) == 0
                   ? 0
                   : zb_fail(err, -ENOENT, "'%s' does not exist (ZSHARD_PLUGINS)", out);
    }
    if (!own_folder(own, sizeof(own)))
        return zb_fail(err, -ENOENT, "no '%s': set ZSHARD_PLUGINS to its folder", file);
    for (size_t i = 0; i < ZB_COUNT(below); i++)
        if (snprintf(out, bytes, "%s/%s/%s", own, below[i], file) < (int)bytes &&
            access(out, F_OK) == 0)
            return 0;
    return zb_fail(err, -ENOENT,
                   "no '%s' in '%s/zshard' or beside: zshard was built or installed without it, or "
                   "set ZSHARD_PLUGINS to its folder",
                   file, own);
}

int zb_plugin_load(struct zb_plugin *ret, const char *file, const char *symbol, int flags,
                   struct zb_err *err)
{
    int rc = plugin_find(file, ret->path, sizeof(ret->path), err);

    if (rc < 0)
        return rc;
    ret->library = dlopen(ret->path, flags);
    if (!ret->library)
        return zb_fail(err, -ELIBACC, "'%s' cannot be loaded: %s", file, dlerror());
    ret->table = dlsym(ret->library, symbol);
    return ret->table ? 0 : zb_fail(err, -ENOEXEC, "'%s' is not a plugin of zshard", ret->path);
}
