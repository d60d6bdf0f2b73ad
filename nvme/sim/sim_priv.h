/*
 * sim_priv.h - the interfaces between the parts of the simulated device.
 *
 *     sim_state.c    contents in shared chunks; changes that are not durable yet; what a power cut
 *                    makes of them. No lock, no clock, no faults.
 *     sim.c          the device: operations, faults, power, recording; with sim_op.c, sim_fault.c,
 *                    sim_record.c and sim_power.c, which alone see inside it (sim_device_priv.h)
 *     engine_sim.c   the engine's backend on it
 *     sim_vfs.c      SQLite's files on it
 */
#ifndef ZN_SIM_PRIV_H
#define ZN_SIM_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "nvme/sim/zn_sim.h"

#define SIM_SECTOR      512u
#define SIM_CHUNK       (UINT64_C(8) << 10)
#define SIM_CACHE_BYTES (UINT64_C(256) << 20) /* the cache is written back when it holds more */
#define SIM_SIZE_MAX    (UINT64_C(1) << 46)   /* of a file */
#define SIM_FILES_MAX   256u

/* ---- contents: a table of chunks that other contents may share; a missing one is zeros */

struct sim_chunk {
    atomic_uint refs; /* written to only when it is 1 */
    unsigned char bytes[SIM_CHUNK];
};

struct sim_data {
    bool exists;
    uint32_t born; /* which creation of this name it is, from 1 */
    uint64_t size;
    struct sim_chunk **chunks; /* [nchunks]: all zeros after size */
    size_t nchunks;
};

void sim_data_done(struct sim_data *d);
/** *ret is not in use before; it shares all chunks. 0 or -ENOMEM. */
int sim_data_copy(struct sim_data *ret, const struct sim_data *d);
/** Bytes of [off, off + len), which is inside size. */
void sim_data_get(const struct sim_data *d, uint64_t off, void *bytes, size_t len);
/** Makes a write of the range certain to succeed. 0 or -ENOMEM. */
int sim_data_own(struct sim_data *d, uint64_t off, size_t len);
/** After sim_data_own(). Grows size when it has to. */
void sim_data_put(struct sim_data *d, uint64_t off, const void *bytes, size_t len);
/** 0 or -ENOMEM (when it shrinks). */
int sim_data_resize(struct sim_data *d, uint64_t size);

/* ---- changes: what is in the cache. Immutable and shared by states and recordings. */

enum sim_change_kind { SIM_CHANGE_WRITE, SIM_CHANGE_RESIZE, SIM_CHANGE_CREATE, SIM_CHANGE_DELETE };

struct sim_change {
    atomic_uint refs;
    enum sim_change_kind kind;
    bool stale; /* never becomes durable: ZN_FAULT_STALE */
    unsigned file;
    uint32_t born; /* of the file that it is a change of; CREATE: of the new one */
    uint64_t off;  /* RESIZE: the new size */
    size_t len;
    unsigned char bytes[]; /* [len] */
};

/** One reference; NULL: no memory. bytes NULL: the caller sets them. */
struct sim_change *sim_change_new(enum sim_change_kind kind, unsigned file, uint32_t born,
                                  uint64_t off, const void *bytes, size_t len);
struct sim_change *sim_change_ref(struct sim_change *c);
void sim_change_unref(struct sim_change *c);
/** To contents of its file. 0 or -ENOMEM. */
int sim_change_apply(const struct sim_change *c, struct sim_data *d);

/* ---- states: what is durable, and what is not yet */

struct sim_pending {
    struct sim_change *change;
    bool forgotten; /* by a flush that failed */
};

struct sim_state {
    struct sim_data *files; /* durable contents, by number */
    unsigned nfiles;
    struct sim_pending *pending; /* in order */
    size_t npending, room;
    uint64_t pending_bytes;
};

void sim_state_done(struct sim_state *st);
/** *ret is zero before. 0 or -ENOMEM, and then *ret is for sim_state_done(). */
int sim_state_copy(struct sim_state *ret, const struct sim_state *st);
/** Room for one more change, of a file with this number. 0 or -ENOMEM. */
int sim_state_room(struct sim_state *st, unsigned file);
/** After sim_state_room(): takes over the reference. */
void sim_state_add(struct sim_state *st, struct sim_change *c);
/** Makes all changes of a file durable. now: what the file is with all of its changes, when that
 *  is known and none was ever stale or forgotten; else NULL. 0; -ENOMEM: a part is durable. */
int sim_state_flush(struct sim_state *st, unsigned file, const struct sim_data *now);
/** Makes creations and deletions durable, of all names: the flush of their folder. */
void sim_state_flush_names(struct sim_state *st);
/** A flush that failed: each write of the file is forgotten, or not. */
void sim_state_forget(struct sim_state *st, unsigned file, uint64_t seed);
/** The power has failed: decides about every change. 0 or -ENOMEM. */
int sim_state_settle(struct sim_state *st, uint64_t seed, uint32_t variant);

/* ---- random numbers: functions of the request, so that nothing depends on other requests */

static inline uint64_t sim_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * UINT64_C(0xd1342543de82ef95) + b * UINT64_C(0x9e3779b97f4a7c15) +
                 UINT64_C(0x2545f4914f6cdd1d);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/** The next of a sequence. */
static inline uint64_t sim_draw(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_mix(*state, 0);
}

/* ---- the device */

/* FLUSH_NAMES: creations and deletions of all files become durable. DISCARD: as a write of bytes that
 * nobody wrote; if it fails with -ENOSPC, also, and the range is a hole until it is allocated. */
enum sim_kind {
    SIM_READ,
    SIM_WRITE,
    SIM_FLUSH,
    SIM_FLUSH_NAMES,
    SIM_RESIZE,
    SIM_CREATE,
    SIM_DELETE,
    SIM_DISCARD,
    SIM_ALLOCATE
};

struct sim_op {
    enum sim_kind kind;
    unsigned file;
    uint64_t off; /* SIM_RESIZE: the new size */
    size_t len;
    void *buf;         /* of a read */
    const void *bytes; /* of a write */
    bool engine;       /* of an engine: its completion can be late, and a read of a device that
                          keeps nothing leaves buf as it is */
    bool ret_late;     /* ZN_FAULT_DELAY struck */
};

/** One operation: bytes moved (0 at the end of the file) or 0; or a negative errno. */
ssize_t sim_do(struct zn_sim *s, struct sim_op *op);

/** The number of a file: names are never forgotten. -ENOMEM, -ENFILE. */
int sim_file(struct zn_sim *s, const char *name);
bool sim_file_exists(struct zn_sim *s, unsigned file, uint64_t *ret_size);
/** Takes the file for one user: false if another user has it. */
bool sim_file_take(struct zn_sim *s, unsigned file, const void *user);
void sim_file_drop(struct zn_sim *s, unsigned file, const void *user);
bool sim_file_taken(struct zn_sim *s, unsigned file, const void *user); /* by another one */
/** Engines and open files of SQLite. */
void sim_user(struct zn_sim *s, int add);

/** A number from the seed: the next of the device. */
uint64_t sim_random(struct zn_sim *s);
const struct zn_sim_options *sim_options(const struct zn_sim *s);
/** Fixed-rate mode: the end of a transfer that arrives now. */
uint64_t sim_due_ns(struct zn_sim *s, size_t len);

/* ---- sim_vfs.c */

struct sim_vfs;
int sim_vfs_new(struct sim_vfs **ret, struct zn_sim *s, struct zb_err *err);
const char *sim_vfs_name(const struct sim_vfs *v);
void sim_vfs_free(struct sim_vfs *v); /* NULL is fine */

#endif
