/*
 * quotas.h - limits of single users, and of the members of groups, as configured (option `quotas`)
 * or set at run time.
 *
 *     quotas = { "alice nvme=2T host=64G", "1001 jobs=4 gpu=none", "@students nvme=100G" }
 *
 * A limit of a group is one of each member. The user's own row comes first, then the first group of
 * the list that has the user and sets the limit, then the default: user_host_bytes, user_nvme_bytes,
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
    bool is_group;
    union {
        uid_t uid;
        gid_t gid; /* of a group */
    };
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
/** Whether a row is about a group. */
bool zsd_quotas_have_groups(const struct zsd_quotas *q);
/** The row that sets this limit of a user, who is in these groups; NULL: none does. */
const struct zsd_user_quota *zsd_quotas_find(const struct zsd_quotas *q, uid_t uid,
                                             const gid_t *groups, size_t ngroups,
                                             enum zsd_holding what);
/** The groups of a user, as the system knows them; none if it does not know the user. Blocks, as
 * getpwuid() does. 0; -ENOMEM. *ret is the caller's to free. */
int zsd_quotas_user_groups(uid_t uid, gid_t **ret, size_t *ret_n);
/** The row of a user; NULL: there is none. */
struct zsd_user_quota *zsd_quotas_of(const struct zsd_quotas *q, uid_t uid);
/** The same, added if there is none. NULL: no memory. */
struct zsd_user_quota *zsd_quotas_add(struct zsd_quotas *q, uid_t uid);
/** Writes the table as the text of the option, with numbers for users; cut to `size` bytes. */
void zsd_quotas_text(const struct zsd_quotas *q, char *text, size_t size);
void zsd_quotas_done(struct zsd_quotas *q);

#endif
