/*
 * codec.c - bodies, unpacked within bounds and checked.
 *
 * MODEL. The arena is one block of memory. Allocations are taken from its beginning and never freed
 * singly; the next zp_decode() starts at the beginning again. Each allocation is preceded by its
 * size. The size is needed to find a string that contains a NUL, since protobuf-c drops the length.
 *
 * No type of shard.proto contains itself, so the walk over a message is as deep as the deepest type
 * (2).
 */
#include "proto/codec.h"

#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/util.h"
#include "proto/wire.h"

struct zp_arena {
    ProtobufCAllocator allocator;
    size_t used_bytes;
    bool full; /* an allocation for this message failed */
    alignas(uint64_t) unsigned char bytes[ZP_ARENA_MAX];
};

#define ARENA_ALIGN alignof(uint64_t) /* no member of a message needs more */

static void *arena_alloc(void *data, size_t bytes)
{
    struct zp_arena *a = data;
    size_t left = sizeof(a->bytes) - a->used_bytes;
    unsigned char *p = a->bytes + a->used_bytes;
    uint64_t size = bytes;

    if (bytes > left || zb_round_up(bytes, ARENA_ALIGN) + sizeof(size) > left) {
        a->full = true;
        return NULL;
    }
    memcpy(p, &size, sizeof(size));
    a->used_bytes += sizeof(size) + zb_round_up(bytes, ARENA_ALIGN);
    return p + sizeof(size);
}

static void arena_free(void *data, void *p)
{
    (void)data;
    (void)p;
}

/** The size that was requested for p. */
static size_t arena_size_of(const char *p)
{
    uint64_t size;

    memcpy(&size, p - sizeof(size), sizeof(size));
    return size;
}

int zp_arena_new(struct zp_arena **ret)
{
    struct zp_arena *a = malloc(sizeof(*a)); /* the kernel provides pages as they are touched */

    if (!a)
        return -ENOMEM;
    a->allocator = (ProtobufCAllocator){ arena_alloc, arena_free, a };
    *ret = a;
    return 0;
}

void zp_arena_free(struct zp_arena *a)
{
    free(a);
}

/* ---- strings */

static int check_string(const char *s, const char *field, struct zb_err *err)
{
    size_t at = 0;

    if (s == protobuf_c_empty_string) /* not sent */
        return 0;
    while (s[at]) {
        uint32_t code = 0;
        size_t len = zb_text_char(s + at, ZB_TEXT_CHAR_MAX, &code);

        if (len == 0)
            return zb_fail(err, -EPROTO, "field %s is not UTF-8", field);
        if (zb_text_is_control(code))
            return zb_fail(err, -EPROTO, "field %s contains a control character", field);
        at += len;
    }
    if (at + 1 != arena_size_of(s))
        return zb_fail(err, -EPROTO, "field %s contains a NUL", field);
    return 0;
}

static int check_message(const ProtobufCMessage *m, struct zb_err *err)
{
    for (unsigned i = 0; i < m->n_unknown_fields; i++)
        if (m->unknown_fields[i].tag == 0) /* protobuf-c accepts it in a longer encoding */
            return zb_fail(err, -EPROTO, "a field of %s has no number", m->descriptor->short_name);
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        const char *member = (const char *)m + f->offset;
        const void *const *values = (const void *const *)(const void *)member;
        size_t n = 1;

        if (f->type != PROTOBUF_C_TYPE_STRING && f->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            memcpy(&n, (const char *)m + f->quantifier_offset, sizeof(n));
            values = values[0];
        }
        for (size_t k = 0; k < n; k++) {
            int rc = 0;

            if (f->type == PROTOBUF_C_TYPE_STRING)
                rc = check_string(values[k], f->name, err);
            else if (values[k])
                rc = check_message(values[k], err);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

int zp_decode(struct zp_arena *a, const ProtobufCMessageDescriptor *type, const uint8_t *body,
              size_t body_bytes, const ProtobufCMessage **ret, struct zb_err *err)
{
    const ProtobufCMessage *m;
    int rc;

    a->used_bytes = 0;
    a->full = false;
    m = protobuf_c_message_unpack(type, &a->allocator, body_bytes, body);
    if (!m && a->full)
        return zb_fail(err, -EMSGSIZE, "a %s of %zu bytes needs more than %u bytes of memory",
                       type->short_name, body_bytes, ZP_ARENA_MAX);
    if (!m)
        return zb_fail(err, -EPROTO, "%zu bytes that are not a valid %s", body_bytes,
                       type->short_name);
    rc = check_message(m, err);
    if (rc == 0)
        *ret = m;
    return rc;
}

/* ---- names */

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool zp_name_valid(const char *name)
{
    size_t n = strnlen(name, ZP_NAME_MAX + 1);

    if (n == 0 || n > ZP_NAME_MAX || name[0] == '.' || name[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_alnum(name[i]) && name[i] != '.' && name[i] != '_' && name[i] != '-')
            return false;
    return true;
}

bool zp_tensor_name_valid(const char *name)
{
    size_t n = strnlen(name, ZP_TENSOR_MAX + 1);

    if (n == 0 || n > ZP_TENSOR_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] <= ' ' || name[i] >= 0x7f || name[i] == '"' || name[i] == '\'')
            return false;
    return true;
}

/* ---- methods */

#define METHOD(request, reply) &zp__##request##__descriptor, &zp__##reply##__descriptor

static const struct zp_method_info methods[ZP_METHOD_END] = {
    [ZP_HELLO] = { "hello", METHOD(hello, hello_reply) },
    [ZP_PING] = { "ping", METHOD(empty, empty) },
    [ZP_JOB_OPEN] = { "job-open", METHOD(job_open, job_open_reply) },
    [ZP_UNIT_DEFINE] = { "unit-define", METHOD(unit_define, empty) },
    [ZP_SHARD_REGISTER] = { "shard-register", METHOD(shard_register, shard_register_reply) },
    [ZP_READY] = { "ready", METHOD(ready, ready_reply) },
    [ZP_WRITE] = { "write", METHOD(write, empty) },
    [ZP_READ] = { "read", METHOD(read, empty) },
    [ZP_FETCH] = { "fetch", METHOD(fetch, fetch_reply) },
    [ZP_RELEASE] = { "release", &zp__release__descriptor, NULL },
    [ZP_PUSH] = { "push", METHOD(push, empty) },
    [ZP_NORMS] = { "norms", METHOD(norms, norms_reply) },
    [ZP_NOTE_PUT] = { "note-put", METHOD(note_put, empty) },
    [ZP_NOTE_GET] = { "note-get", METHOD(note_get, note_get_reply) },
    [ZP_STEP] = { "step", METHOD(step, step_reply) },
    [ZP_SKIP] = { "skip", METHOD(skip, step_reply) },
    [ZP_JOB_CLOSE] = { "job-close", METHOD(job_ref, empty) },
    [ZP_JOB_DESTROY] = { "job-destroy", METHOD(job_name, empty) },
    [ZP_LIST] = { "list", METHOD(list_request, list_reply) },
    [ZP_JOBS] = { "jobs", METHOD(jobs_request, jobs_reply) },
    [ZP_TIERS] = { "tiers", METHOD(empty, tiers_reply) },
    [ZP_STAT] = { "stat", METHOD(empty, stat_reply) },
    [ZP_COMMIT] = { "commit", METHOD(commit, commit_reply) },
    [ZP_PROGRESS] = { "progress", METHOD(progress, empty) },
    [ZP_SNAPSHOT] = { "snapshot", METHOD(snapshot_take, snapshot_row) },
    [ZP_SNAPSHOTS] = { "snapshots", METHOD(snapshots_request, snapshots_reply) },
    [ZP_ROLLBACK] = { "rollback", METHOD(snapshot_ref, snapshot_row) },
    [ZP_CLONE] = { "clone", METHOD(clone, snapshot_row) },
    [ZP_SNAPSHOT_DESTROY] = { "snapshot-destroy", METHOD(snapshot_ref, empty) },
    [ZP_READER_OPEN] = { "reader-open", METHOD(reader_open, reader_open_reply) },
    [ZP_READER_UNIT] = { "reader-unit", METHOD(reader_unit, reader_unit_reply) },
    [ZP_READER_READ] = { "reader-read", METHOD(reader_read, empty) },
    [ZP_READER_CLOSE] = { "reader-close", METHOD(reader_ref, empty) },
    [ZP_SCRUB] = { "scrub", METHOD(scrub, scrub_reply) },
    [ZP_FSCK] = { "fsck", METHOD(empty, fsck_reply) },
    [ZP_DF] = { "df", METHOD(df_request, df_reply) },
    [ZP_STEP_BEGIN] = { "step-begin", METHOD(step_begin, empty) },
    [ZP_TOP] = { "top", METHOD(top_request, top_reply) },
    [ZP_JOB_SHARE] = { "job-share", METHOD(job_share, empty) },
    [ZP_DRIVE_SET] = { "drive-set", METHOD(drive_set, empty) },
    [ZP_TIER_SET] = { "tier-set", METHOD(tier_set, empty) },
    [ZP_GPU_SHARE] = { "gpu-share", METHOD(job_ref, gpu_share_reply) },
    [ZP_STEP_CLASSES] = { "step-classes", METHOD(step_classes, empty) },
    [ZP_JOB_OPTIMIZER] = { "job-optimizer", METHOD(job_optimizer, empty) },
    [ZP_ABANDON] = { "abandon", METHOD(abandon, empty) },
    [ZP_HEALTH] = { "health", METHOD(empty, health_reply) },
    [ZP_METRICS] = { "metrics", METHOD(metrics_request, metrics_reply) },
    [ZP_QUOTA] = { "quota", METHOD(quota_request, quota_reply) },
    [ZP_QUOTA_SET] = { "quota-set", METHOD(quota_set, empty) },
    [ZP_SETTINGS] = { "settings", METHOD(empty, settings_reply) },
    [ZP_LOG_LEVEL] = { "log-level", METHOD(log_level, log_level) },
    [ZP_RESTART] = { "restart", METHOD(restart_request, restart_reply) },
    [ZP_LOG_EVENTS] = { "log-events", METHOD(log_events_request, log_events_reply) },
    [ZP_TENSOR_NORMS] = { "tensor-norms", METHOD(tensor_norms, tensor_norms_reply) },
    [ZP_STEP_TENSORS] = { "step-tensors", METHOD(step_tensors, empty) },
    [ZP_UNIT_SUMS] = { "unit-sums", METHOD(unit_sums, empty) },
    [ZP_JOB_ABOUT] = { "job-about", METHOD(job_about, empty) },
};

const char *zp_early_text(unsigned early)
{
    static const char *const texts[ZP_EARLY_END] = {
        [ZP_EARLY_UNKNOWN] = "",
        [ZP_EARLY_YES] = "yes",
        [ZP_EARLY_OFF] = "off: it is not asked for",
        [ZP_EARLY_ROOM] = "off: the data files have no room for it",
        [ZP_EARLY_GLOBAL] = "off: the global norm is known with the last gradient",
        [ZP_EARLY_SCALE] = "off: with a dynamic loss scale an overflow is known too late",
        [ZP_EARLY_MICROS] = "off: the number of micro-steps is not known in advance",
        [ZP_EARLY_OLD] = "off: a daemon of another node is older",
    };

    return early < ZP_EARLY_END ? texts[early] : "";
}

const struct zp_method_info *zp_method_info(unsigned method)
{
    return method < ZP_METHOD_END && methods[method].name ? &methods[method] : NULL;
}

#define REPLY_SMALL 1024u /* an error message, or a few numbers */
#define FETCH_ITEM  40u   /* of the reply, for each id: at least a byte of the request */

size_t zp_reply_max(unsigned method, size_t body_bytes)
{
    const struct zp_method_info *info = zp_method_info(method);
    size_t most = ZP_HEADER_BYTES + ZP_BODY_MAX, bytes = most;

    if (!info || info->reply == &zp__empty__descriptor || method == ZP_STEP || method == ZP_SKIP ||
        method == ZP_COMMIT || method == ZP_HELLO)
        bytes = REPLY_SMALL;
    else if (method == ZP_FETCH)
        bytes = REPLY_SMALL + body_bytes * FETCH_ITEM;
    return bytes < most ? bytes : most;
}
