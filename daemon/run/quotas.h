/*
 * quotas.h - limits of single users, as configured (option `quotas`) or set at run time.
 *
 *     quotas = { "alice nvme=2T host=64G", "1001 jobs=4 gpu=none" }
 *
 * A limit that a user's row does not set is the default's: user_host_bytes, user_nvme_bytes,
 * user_gpu_bytes, user_jobs_max. The table is one struct, so that a reload can replace it.
 *
 * Loop thread only, except for the check.
 */
#ifndef ZSD_QUOTAS_H
#define ZSD_QUOTAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/** What a user's limits are about. The first three are bytes of a tier. */
enum zsd_holding {
    ZSD_HELD_HOST,
    ZSD_HELD_NVME,
    ZSD_HELD_GPU,
    ZSD_HELD_TIERS,
    ZSD_HELD_JOBS = 3,
    ZSD_HELDS
};

#define ZSD_NO_MAX UINT64_MAX

struct zsd_user_quota {
    uid_t uid;
    bool set[ZSD_HELDS];     /* else the default's */
    uint64_t max[ZSD_HELDS]; /* ZSD_NO_MAX: none */
};

/** All zero: no user has limits of its own. */
struct zsd_quotas {
    struct zsd_user_quota *rows;
    size_t n, room;
    bool set_at_run_time; /* zctl quota set changed them */
};

/** The name of a limit, in the option and in messages: "host", "nvme", "gpu", "jobs". */
const char *zsd_holding_name(enum zsd_holding what);
/** Checks the text of the option: 0, or -EINVAL with the message. */
int zsd_quotas_check(const char *text, struct zb_err *err);
/** Makes the table from the text of the option. 0; -EINVAL or -ENOMEM: *ret is empty. */
int zsd_quotas_parse(const char *text, struct zsd_quotas *ret, struct zb_err *err);
/** The row of a user; NULL: there is none. */
struct zsd_user_quota *zsd_quotas_of(const struct zsd_quotas *q, uid_t uid);
/** The same, added if there is none. NULL: no memory. */
struct zsd_user_quota *zsd_quotas_add(struct zsd_quotas *q, uid_t uid);
/** Writes the table as the text of the option, with numbers for users; cut to `size` bytes. */
void zsd_quotas_text(const struct zsd_quotas *q, char *text, size_t size);
void zsd_quotas_done(struct zsd_quotas *q);

#endif
