/*
 * catalog_model.h - a model in memory of what a catalog must hold: records of KINDS x SIDE x SIDE
 * keys, with bytes from a seed; and random changes to it.
 */
#ifndef CATALOG_MODEL_H
#define CATALOG_MODEL_H

#include "zn_test.h"

#include "nvme/zn_catalog.h"

enum { KINDS = 3, SIDE = 6 };

struct record {
    bool there;
    uint32_t len_bytes;
    uint64_t seed;
};

struct model {
    struct record records[KINDS][SIDE][SIDE];
};

struct zn_key model_key(unsigned kind, unsigned a, unsigned b);

void txn_put(struct zn_txn *t, const struct zn_key *key, const struct record *r);

/** Makes a few random changes, to the transaction and to the model. */
void txn_random(struct zn_txn *t, struct model *m, uint64_t *seed, uint32_t len_max);

/** true: the catalog holds exactly the model's records, by content, digest and counters. */
bool same(struct zn_catalog *c, const struct model *m);

#endif
