/*
 * reload.h - reads the configuration again while the daemon runs.
 *
 * MODEL. A reload reads the same file and command line as the start. Either all of it is right, or
 * nothing changes. Options that differ from the values in effect are applied one by one, if they can
 * be changed in a running daemon. The others wait for a restart. What an administrator has set at
 * run time (`zctl tier set`, `quota set`, `log-level`) stays until its option in the file changes.
 *
 * INVARIANT. reload->given has the values in effect, as they were given ("auto" is not resolved). If
 * reload->wanted differs in an option, that option waits for a restart.
 *
 * Loop thread only. The file is small and local, but names of users and groups are looked up.
 */
#ifndef ZSD_RELOAD_H
#define ZSD_RELOAD_H

#include "base/err.h"
#include "base/opt.h"
#include "daemon/run/daemon.h"

struct zsd_reload {
    struct zsd_config given;  /* in effect */
    struct zsd_config wanted; /* as read last */
};

/** Records the settings as given. Before the start resolves "auto". 0; -ENOMEM. */
int zsd_reload_open(struct zsd *daemon, struct zb_err *err);
void zsd_reload_close(struct zsd *daemon);

/** Reads the configuration again, applies it, and logs what changed. The daemon must have been
 * started with a file (daemon->config.file). A failure is logged; then nothing has changed. */
void zsd_reload(struct zsd *daemon);

/** Whether an option has the same value in both. */
bool zsd_same_value(const struct zb_opt *o, const struct zsd_config *a, const struct zsd_config *b);

#endif
