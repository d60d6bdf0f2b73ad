/*
 * comm_plugin.h - what a backend in a shared object of its own exports, as `zc_comm_plugin`.
 */
#ifndef ZC_COMM_PLUGIN_H
#define ZC_COMM_PLUGIN_H

#include "client/zero/zc_zero.h"

#define ZC_COMM_PLUGIN_VERSION 3u /* of this struct and of struct zc_comm_ops */

struct zc_comm_plugin {
    uint32_t version;
    /** As zc_comm_open(); called at most once in a process. */
    int (*open)(struct zc_comm **ret, char *error, size_t error_bytes);
};

extern ZC_EXPORT const struct zc_comm_plugin zc_comm_plugin;

#endif
