/*
 * ask_priv.h - what requests have in common.
 *
 * What the caller gave is written into a message at once, so nothing of it is looked at after a
 * call returns; a call in parts keeps a copy. What the daemon answers is checked against what was
 * asked (C3): -EPROTO from a reply ends the connection.
 */
#ifndef ZC_ASK_PRIV_H
#define ZC_ASK_PRIV_H

#include "client/conn/conn.h"

/** 0, or the failure is recorded: a name that cannot be sent. */
int zc_name_check(struct zc_client *c, const char *what, const char *name, unsigned max);
/** 0, or the failure is recorded: so many shards cannot be named at once. */
int zc_count_check(struct zc_client *c, uint32_t n);
/** Where in memory shared with the daemon the caller's bytes are: 0, or the failure is recorded. */
int zc_staging_offset(struct zc_client *c, const struct zc_map *map, const void *staged,
                      uint64_t *ret);

/** The scalars of a group, as they are sent. */
void zc_group_scalars(const struct zc_group *from, Zp__GroupScalars *to);

#endif
