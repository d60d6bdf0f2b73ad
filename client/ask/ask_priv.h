/*
 * ask_priv.h - shared by all requests.
 *
 * Arguments are written into a message at once and not read after the call returns; a call in parts
 * keeps a copy. A reply is checked against its request (C3): -EPROTO from a reply ends the
 * connection.
 */
#ifndef ZC_ASK_PRIV_H
#define ZC_ASK_PRIV_H

#include "client/conn/conn.h"

/** Checks a name. 0, or the failure is recorded. */
int zc_name_check(struct zc_client *c, const char *what, const char *name, unsigned max);
/** Reads the name of a job, NAME or UID/NAME: *ret_name is NAME, a part of `job`, *ret_owner the value
 * of the field `owner`. NULL is "". 0, or the failure is recorded. */
int zc_job_word(struct zc_client *c, const char *job, char **ret_name, uint64_t *ret_owner);
/** Checks the number of shards in a request. 0, or the failure is recorded. */
int zc_count_check(struct zc_client *c, uint32_t n);
/** Sets *ret to the offset of `staged` in shared memory. 0, or the failure is recorded. */
int zc_staging_offset(struct zc_client *c, const struct zc_map *map, const void *staged,
                      uint64_t *ret);

/** Checks that the daemon knows sums of tensors over several nodes. 0, or the failure is recorded. */
int zc_sums_known(struct zc_client *c);
/** Converts the scalars of a group to the message's form. */
void zc_group_scalars(const struct zc_group *from, Zp__GroupScalars *to);

#endif
