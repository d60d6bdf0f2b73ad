/*
 * paths_found.c - opens a store as it is found: with the data files and the sizes that it has. For
 * work on a store that no daemon serves, and for --read-only.
 */
#include <errno.h>
#include <unistd.h>

#include "daemon/disk/datadir.h"
#include "daemon/disk/paths.h"

int zsd_paths_open_found(struct zsd *daemon, const char *what, bool read_only, struct zb_err *err)
{
    struct zsd_config *config = &daemon->config;
    struct zn_options options = {
        .io = config->io, .depth = config->io_depth, .read_only = read_only, .no_follow = true
    };
    int rc;

    if (config->data[0] == '\0')
        return zb_fail(err, -EINVAL, "%s needs --data: the data directory", what);
    if (access(config->data, F_OK) < 0)
        return zb_fail(err, -errno, "data directory '%s': %m", config->data);
    rc = zsd_datadir_open(&daemon->datadir, config->data, err);
    if (rc == 0 && (!read_only || config->read_only))
        rc = zsd_datadir_trusted(daemon->datadir, err);
    if (rc == 0 && !config->read_only) /* which needs a copy of the catalog only */
        rc = zsd_datadir_holds(daemon->datadir, err);
    if (rc < 0)
        return rc;
    daemon->read_only = read_only;
    options.path = zsd_datadir_file(daemon->datadir);
    /* a truncated file may have a size that zn_open() rejects; its superblock has the original
     * size */
    options.size_bytes = zb_max_u64(zb_round_up(zsd_datadir_room(daemon->datadir), ZB_PAGE_ALIGN),
                                    ZN_DATA_START + ZB_PAGE_ALIGN);
    config->more_bytes = ZSD_AUTO;
    rc = zn_open(&daemon->engine, &options, err);
    if (rc < 0)
        return rc;
    daemon->catalog_path = zsd_datadir_catalog(daemon->datadir);
    daemon->engine_base = ZN_DATA_START;
    return zsd_paths_open(daemon, err);
}
