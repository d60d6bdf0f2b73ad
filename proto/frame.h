/*
 * frame.h - frames: what travels on the socket.
 *
 * A frame is a header of ZP_HEADER_BYTES and a body of at most ZP_BODY_MAX bytes. All numbers are
 * little-endian.
 *
 *     0  4  magic "zsh\1"
 *     4  4  body_bytes
 *     8  2  method        enum zp_method (or enum zp_event)
 *    10  1  kind          enum zp_kind
 *    11  1  fds           descriptors that travel with this frame's first byte, 0 to ZP_FDS_MAX
 *    12  4  code          of a reply: 0, or a negative errno; then the body is the error message in
 *                         UTF-8
 *    16  8  tag           of a request: the caller's; its reply carries the same
 *
 * Pure functions, any thread.
 */
#ifndef ZP_FRAME_H
#define ZP_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define ZP_HEADER_BYTES 24u
#define ZP_BODY_MAX     65536u
#define ZP_FDS_MAX      4u
#define ZP_VERSION_MIN  1u
#define ZP_VERSION_MAX  1u
#define ZP_SHARDS_MAX   1024u  /* named by one request */
#define ZP_NOTE_MAX     65536u /* bytes of one note */
#define ZP_NOTE_PART    32768u /* of it in one message */
#define ZP_NAME_MAX     63u    /* bytes of a job's or unit's name */
#define ZP_TENSOR_MAX   127u   /* bytes of a tensor's name */
#define ZP_DIMS_MAX     8u
#define ZP_GROUPS_MAX   64u
#define ZP_GROUP_FROZEN 65535u
#define ZP_CLASSES_MAX  1024u /* of one step */
#define ZP_NORMS_PART   256u  /* sums by tensor, in one reply */
#define ZP_VALUES_PART  1024u /* values by tensor, in one request */
#define ZP_CLASSES_PART 256u  /* of them in one message, */
#define ZP_RUNS_PART    4096u /* and runs of tensors */
#define ZP_WORLD_MAX    4096u
#define ZP_UNITS_MAX    65536u

enum zp_kind {
    ZP_REQUEST = 1, /* answered by exactly one ZP_REPLY */
    ZP_REPLY = 2,
    ZP_ONEWAY = 3, /* never answered */
    ZP_EVENT = 4,  /* from the daemon; tag is 0 */
};

enum zp_method {
    ZP_HELLO = 1,
    ZP_PING = 2,
    ZP_JOB_OPEN = 3,
    ZP_UNIT_DEFINE = 4,
    ZP_SHARD_REGISTER = 5,
    ZP_READY = 6,
    ZP_WRITE = 7,
    ZP_READ = 8,
    ZP_FETCH = 9,
    ZP_RELEASE = 10,
    ZP_PUSH = 11,
    ZP_NORMS = 12,
    ZP_NOTE_PUT = 13,
    ZP_NOTE_GET = 14,
    ZP_STEP = 15,
    ZP_SKIP = 16,
    ZP_JOB_CLOSE = 17,
    ZP_JOB_DESTROY = 18,
    ZP_LIST = 19,
    ZP_JOBS = 20,
    ZP_TIERS = 21,
    ZP_STAT = 22,
    ZP_COMMIT = 23,
    ZP_PROGRESS = 24,
    ZP_SNAPSHOT = 25,
    ZP_SNAPSHOTS = 26,
    ZP_ROLLBACK = 27,
    ZP_CLONE = 28,
    ZP_SNAPSHOT_DESTROY = 29,
    ZP_READER_OPEN = 30,
    ZP_READER_UNIT = 31,
    ZP_READER_READ = 32,
    ZP_READER_CLOSE = 33,
    ZP_SCRUB = 34,
    ZP_FSCK = 35,
    ZP_DF = 36,
    ZP_STEP_BEGIN = 37,
    ZP_TOP = 38,
    ZP_JOB_SHARE = 39,
    ZP_TIER_SET = 40,
    ZP_GPU_SHARE = 41,
    ZP_STEP_CLASSES = 42,
    ZP_JOB_OPTIMIZER = 43,
    ZP_ABANDON = 44,
    ZP_HEALTH = 45,
    ZP_METRICS = 46,
    ZP_QUOTA = 47,
    ZP_QUOTA_SET = 48,
    ZP_SETTINGS = 49,
    ZP_LOG_LEVEL = 50,
    ZP_RESTART = 51,
    ZP_LOG_EVENTS = 52,
    ZP_TENSOR_NORMS = 53,
    ZP_STEP_TENSORS = 54,
    ZP_DRIVE_SET = 55,
    ZP_UNIT_SUMS = 56,
    ZP_JOB_ABOUT = 57,
    ZP_METHOD_END
};

enum zp_event {
    ZP_EVENT_PEER_LOST = 100,  /* a rank of this job died or disconnected */
    ZP_EVENT_JOB_FAILED = 101, /* the job has ended: code and text have the reason */
    ZP_EVENT_RESTART = 102,    /* the daemon is about to restart: attach again after a step */
};

struct zp_frame {
    uint32_t body_bytes;
    uint16_t method;
    uint8_t kind;
    uint8_t fds;
    int32_t code;
    uint64_t tag;
};

/**
 * Checks the beginning of a byte stream.
 *
 * @return 1  it is a complete frame: *ret is its header, its body follows at ZP_HEADER_BYTES
 *         0  more bytes are needed; *ret is unchanged
 *         -EPROTO    the magic, kind or count of descriptors is wrong    } the stream is unusable:
 *         -EMSGSIZE  the body is longer than ZP_BODY_MAX                 } close it
 */
int zp_frame_next(const uint8_t *bytes, size_t len_bytes, struct zp_frame *ret);

void zp_frame_put(const struct zp_frame *frame, uint8_t out[ZP_HEADER_BYTES]);

#endif
