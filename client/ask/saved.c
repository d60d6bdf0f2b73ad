/*
 * saved.c - requests for snapshots, rollbacks and clones.
 */
#include "client/ask/rows_priv.h"

/** For an optional name: NULL becomes "". */
static char *or_empty(const char *name)
{
    return UNCONST(char, name ? name : "");
}

static int snapshot_check(struct zc_client *c, const char *job, const char *snapshot,
                          char **ret_name, uint64_t *ret_owner)
{
    int rc = job ? zc_job_word(c, job, ret_name, ret_owner)
                 : zc_name_check(c, "a job", job, ZC_NAME_MAX);

    return rc < 0 ? rc : zc_name_check(c, "a snapshot", or_empty(snapshot), ZC_NAME_MAX);
}

static void snapshot_copy(struct zc_snapshot_row *to, const Zp__SnapshotRow *from)
{
    to->iterations = from->iterations;
    to->applied = from->applied;
    to->created_unix = from->created_unix;
    to->bytes = from->bytes;
    to->own_bytes = from->own_bytes;
    to->world = from->world;
    to->uid = from->uid;
    COPY(to->job, from->job);
    COPY(to->name, from->name);
}

static int reply_snapshot(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds)
{
    (void)c;
    (void)fds;
    *(struct zc_snapshot_row *)call->spec.ret = (struct zc_snapshot_row){ 0 };
    snapshot_copy(call->spec.ret, (const Zp__SnapshotRow *)m);
    return 0;
}

static const struct zc_method method_snapshot = { .id = ZP_SNAPSHOT, .reply = reply_snapshot };

int zc_snapshot(struct zc_client *c, const struct zc_snapshot *snapshot,
                struct zc_snapshot_row *ret, zc_done_fn *done, void *arg)
{
    Zp__SnapshotTake m = ZP__SNAPSHOT_TAKE__INIT;
    int rc = snapshot_check(c, snapshot->job, snapshot->name, &m.job, &m.owner);

    if (rc < 0)
        return rc;
    m.name = or_empty(snapshot->name);
    m.next = snapshot->next;
    m.retain = snapshot->retain;
    m.timeout_ms = snapshot->timeout_ms;
    return zc_ask(c, &method_snapshot, &m.base, ret, done, arg);
}

static int snapshot_ref(struct zc_client *c, const struct zc_method *method, const char *job,
                        const char *snapshot, struct zc_snapshot_row *ret, zc_done_fn *done,
                        void *arg)
{
    Zp__SnapshotRef m = ZP__SNAPSHOT_REF__INIT;
    int rc = snapshot_check(c, job, snapshot, &m.job, &m.owner);

    if (rc < 0)
        return rc;
    m.name = or_empty(snapshot);
    return zc_ask(c, method, &m.base, ret, done, arg);
}

static const struct zc_method method_rollback = { .id = ZP_ROLLBACK, .reply = reply_snapshot };

int zc_rollback(struct zc_client *c, const char *job, const char *snapshot,
                struct zc_snapshot_row *ret, zc_done_fn *done, void *arg)
{
    return snapshot_ref(c, &method_rollback, job, snapshot, ret, done, arg);
}

static const struct zc_method method_snapshot_destroy = { .id = ZP_SNAPSHOT_DESTROY };

int zc_snapshot_destroy(struct zc_client *c, const char *job, const char *snapshot,
                        zc_done_fn *done, void *arg)
{
    return snapshot_ref(c, &method_snapshot_destroy, job, snapshot, NULL, done, arg);
}

static const struct zc_method method_clone = { .id = ZP_CLONE, .reply = reply_snapshot };

int zc_clone(struct zc_client *c, const char *job, const char *snapshot, const char *name,
             struct zc_snapshot_row *ret, zc_done_fn *done, void *arg)
{
    Zp__Clone m = ZP__CLONE__INIT;
    int rc = snapshot_check(c, job, snapshot, &m.job, &m.owner);

    if (rc == 0)
        rc = zc_name_check(c, "a job", name, ZC_NAME_MAX);
    if (rc < 0)
        return rc;
    m.snapshot = or_empty(snapshot);
    m.name = UNCONST(char, name);
    return zc_ask(c, &method_clone, &m.base, ret, done, arg);
}

static int reply_snapshots(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                           int *fds)
{
    const Zp__SnapshotsReply *r = (const Zp__SnapshotsReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++)
        snapshot_copy((struct zc_snapshot_row *)added + i, r->rows[i]);
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_snapshots = { .id = ZP_SNAPSHOTS, .reply = reply_snapshots };

int zc_snapshots_wait(struct zc_client *c, const char *job, struct zc_snapshot_row **ret_rows,
                      size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__SnapshotsRequest m = ZP__SNAPSHOTS_REQUEST__INIT;
    int rc = zc_job_word(c, job, &m.job, &m.owner);

    if (rc < 0)
        return rc;
    rc = zc_rows_collect(c, &method_snapshots, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}
