/*
 * emulated_priv.h - the emulated GPU, for the files that make it: emulated.c (the device),
 * emulated_mem.c (its memory, and pinned memory of the host) and emulated_stream.c. emulated.c has
 * the model and the invariants.
 */
#ifndef ZK_EMULATED_PRIV_H
#define ZK_EMULATED_PRIV_H

#include "kernels/gpu/gpu_priv.h"

struct emu {
    struct zk_gpu base;
    const struct zk_ops *ops;
    uint64_t delay_us;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a queue, an event, or `stop` of a stream */
    bool limited;           /* the number of works is limited */
    uint64_t works_left;
    struct zb_err dead;  /* code is 0 while the device works */
    struct zb_list pins; /* pieces of host memory */
    uint64_t pin_left;   /* bytes */
    uint64_t shares;     /* 0: its memory cannot be shared */
};

static inline struct emu *emu_of(struct zk_gpu *g)
{
    return zb_container_of(g, struct emu, base);
}

static inline void emu_die(struct emu *e, int code, const char *why)
{
    (void)pthread_mutex_lock(&e->lock);
    (void)zb_fail(&e->dead, code, "the emulated GPU is lost: %s", why);
    (void)pthread_mutex_unlock(&e->lock);
}

/* Under the lock: 0, or why the device is lost. */
static inline int emu_alive(const struct emu *e, struct zb_err *err)
{
    return e->dead.code == 0 ? 0 : zb_fail(err, e->dead.code, "%s", e->dead.text);
}

/* Under the lock: true for what is allocated or worked on after the last that may be. */
static inline bool emu_spend(struct emu *e)
{
    if (!e->limited)
        return false;
    if (e->works_left == 0)
        return true;
    e->works_left--;
    return false;
}

/* ---- emulated_mem.c: of the backend's table */

void zk_emu_mem_free(struct zk_gpu_mem *m);
int zk_emu_mem_new(struct zk_gpu_mem *m, struct zb_err *err);
int zk_emu_mem_import(struct zk_gpu_mem *m, int fd, bool writable, struct zb_err *err);
int zk_emu_mem_export(struct zk_gpu_mem *m, int *ret_fd, struct zb_err *err);
int zk_emu_pin(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only,
               struct zb_err *err);
void zk_emu_unpin(struct zk_gpu *g, void *addr);

/* ---- emulated_mem.c: for streams */

/** The device's own mapping of len_bytes at `dev`; NULL: not its memory, or not writable. *ret_mem
 * is busy until zk_emu_mem_idle(). */
void *zk_emu_mem_find(struct emu *e, const void *dev, uint64_t len_bytes, bool writes,
                      struct zk_gpu_mem **ret_mem);
void zk_emu_mem_idle(struct emu *e, struct zk_gpu_mem *m);
/** As strict as drivers may be: a copy's host memory is pinned in one piece, or not at all. */
bool zk_emu_pins_whole(struct emu *e, const char *host, uint64_t len_bytes);

/* ---- emulated_stream.c: of the backend's table */

int zk_emu_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err);
void zk_emu_stream_free(struct zk_gpu_stream *base);
int zk_emu_stream_sync(struct zk_gpu_stream *base, struct zb_err *err);
int zk_emu_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err);
void zk_emu_event_free(struct zk_gpu_event *event);
int zk_emu_event_record(struct zk_gpu_event *event, struct zk_gpu_stream *s, struct zb_err *err);
int zk_emu_event_wait(struct zk_gpu_event *event, struct zk_gpu_stream *s, struct zb_err *err);
int zk_emu_event_query(struct zk_gpu_event *base, struct zb_err *err);
int zk_emu_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                uint64_t len_bytes, struct zb_err *err);
int zk_emu_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                struct zb_err *err);
int zk_emu_signal(struct zk_gpu_stream *s, int fd, struct zb_err *err);
int zk_emu_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work, struct zb_err *err);
int zk_emu_call(struct zk_gpu_stream *s, zk_gpu_call_fn *fn, const void *args, size_t args_bytes,
                const struct zk_gpu_use *uses, unsigned nuses, struct zb_err *err);

#endif
