/*
 * record.h - the records of the catalog. nvme/FORMAT.md has the bytes.
 *
 * Any thread: the functions only read the object. put and del return 0 or -ENOMEM; get returns 0,
 * -ENOMEM, -EBADMSG, or -EOPNOTSUPP (a later release has written the record), with a message.
 */
#ifndef ZSD_RECORD_H
#define ZSD_RECORD_H

#include "daemon/store/saved.h"
#include "nvme/zn_catalog.h"

enum zsd_record {
    ZSD_RECORD_STORE = 1,    /* (0, 0): boot, next_id */
    ZSD_RECORD_JOB = 2,      /* (number, 0) */
    ZSD_RECORD_UNIT = 3,     /* (number, index): a part of the manifest */
    ZSD_RECORD_VERSION = 4,  /* (number, id): refers to rows by id */
    ZSD_RECORD_NOTE = 5,     /* (version id, rank; ZSD_NOTE_OF_JOB) */
    ZSD_RECORD_ROW = 6,      /* (row id, 0) */
    ZSD_RECORD_SNAPSHOT = 7, /* (number, id) */
    ZSD_RECORD_DRAIN = 8,    /* (index of a data file, 0): drains.h */
};
#define ZSD_NOTE_OF_JOB (UINT64_C(1) << 32)

/* Bits of what a store has that a daemon must know, or it must not open the store. In the record they
 * are names; without any, the record is as it was before there were features. */
#define ZSD_FEATURE_NAMES_PER_USER UINT32_C(1) /* two users have a job of the same name */
#define ZSD_FEATURE_IMAGES         UINT32_C(2) /* there is an image of a restart (saved.h) */

struct zsd_store_record {
    uint64_t boot, next_id, next_job;
    uint32_t features;
};
int zsd_record_put_store(struct zn_txn *t, const struct zsd_store_record *s);
/** Also -EOPNOTSUPP: the store has a feature that this daemon does not know; err has its name. */
int zsd_record_get_store(const void *bytes, size_t len_bytes, struct zsd_store_record *ret,
                         struct zb_err *err);
/** The job without units and versions, but with the ids of its committed and prepared version. */
int zsd_record_put_job(struct zn_txn *t, const struct zsd_saved *saved, uint64_t committed,
                       uint64_t prepared);
int zsd_record_get_job(const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zsd_saved *ret, uint64_t *ret_committed, uint64_t *ret_prepared,
                       struct zb_err *err);
int zsd_record_put_unit(struct zn_txn *t, uint32_t job, const struct zsd_unit *unit);
/** *ret is new: name, elems, layout, tensors and segments. */
int zsd_record_get_unit(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_unit **ret, struct zb_err *err);
/** With its notes. */
int zsd_record_put_version(struct zn_txn *t, uint32_t job, const struct zsd_version *v);
/** Returns rows as ids: *ret_rows is new, [nrows]; notes are separate records. */
int zsd_record_get_version(const struct zn_key *key, const void *bytes, size_t len_bytes,
                           struct zsd_version **ret, uint64_t **ret_rows, struct zb_err *err);
int zsd_record_get_note(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_note *ret, struct zb_err *err);
int zsd_record_put_row(struct zn_txn *t, const struct zsd_row *r);
int zsd_record_get_row(const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zsd_row **ret, struct zb_err *err);
int zsd_record_put_snap(struct zn_txn *t, uint32_t job, const struct zsd_snap *s);
/** *ret is new, without its version; *ret_version is the version's id. */
int zsd_record_get_snap(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_snap **ret, uint64_t *ret_version, struct zb_err *err);
/** Deletes a job with its units; a version with its notes; a row; a snapshot. */
int zsd_record_del_job(struct zn_txn *t, const struct zsd_saved *saved);
int zsd_record_del_version(struct zn_txn *t, uint32_t job, const struct zsd_version *v);
int zsd_record_del_row(struct zn_txn *t, uint64_t row);
int zsd_record_del_snap(struct zn_txn *t, uint32_t job, const struct zsd_snap *s);

#endif
