/*
 * cmd.h - the commands of this room. main.c lists them.
 */
#ifndef ZCTL_CMD_H
#define ZCTL_CMD_H

#include "client/zctl/base/zctl.h"

extern const struct zctl_cmd zctl_clone, zctl_completion, zctl_config, zctl_destroy, zctl_df,
    zctl_events, zctl_export, zctl_fsck, zctl_help, zctl_import, zctl_jobs, zctl_log_level, zctl_ls,
    zctl_drive, zctl_metrics, zctl_ping, zctl_quota, zctl_restart, zctl_rollback, zctl_scrub,
    zctl_share, zctl_snapshot, zctl_snapshots, zctl_stat, zctl_status, zctl_tier, zctl_tiers,
    zctl_version;

/** The common options: -s, -o, --json, --help and --version. */
extern const struct zb_opt zctl_options[];

struct zctl_globals {
    const char *socket;
    struct zctl_output output; /* output.json is --json */
    bool help, version;
    double wait_ms;
};

/** settings.c: zctl config show. */
int zctl_settings(struct zctl *z);

/** Prints the help of cmd, or of all commands (NULL). */
int zctl_show_help(struct zctl *z, const struct zctl_cmd *cmd);

#endif
