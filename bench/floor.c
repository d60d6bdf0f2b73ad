#include "bench/floor.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/size.h"
#include "base/util.h"
#include "bench/drive.h"
#include "kernels/ortho.h"
#include "nvme/zn_fixed.h"

#define STEP_HUGE       (2 * ZB_MIB)
#define STEP_KERNEL_MAX (UINT64_C(32) << 20) /* parameters that the kernels are measured on */
#define STEP_LOOP_S     0.25
#define STEP_LOOP_BYTES (UINT64_C(256) << 20)

struct kernel_thread {
    struct zbench_kernels *k;
    pthread_t thread;
    unsigned index;
    bool sums; /* with checksums before and after */
};

static void kernel_page(const struct zbench_kernels *k, uint64_t page, bool sums)
{
    static const struct zk_params params = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .scale = 1
    };
    const struct zk_scalars adamw = zk_prepare(ZB_ADAMW, &params, 2);
    const struct zb_layout *l = &k->layout;
    uint8_t *params_at = k->memory + page * k->page_elems * (2 * STEP_HALF + STEP_STATE);
    uint8_t *grads_at = params_at + k->page_elems * STEP_HALF;
    uint8_t *states_at = grads_at + k->page_elems * STEP_HALF;
    uint64_t piece = sums ? ZB_BLOCK_ELEMS : k->page_elems;
    const struct zn_page_id id = { .job = 1 };
    volatile uint32_t sum = 0;

    for (uint64_t first = 0; first < k->page_elems; first += piece) {
        uint8_t *block = states_at + first * STEP_STATE;
        const struct zk_segment all = { .first = first, .count = piece };
        const struct zk_page p = { .param = params_at + first * STEP_HALF,
                                   .grad = grads_at + first * STEP_HALF,
                                   .state = block,
                                   .first = first,
                                   .count = piece };

        if (sums)
            sum = zn_page_crc(&id, 0, block, (uint32_t)(piece * STEP_STATE));
        zk_page_step(k->ops, l, &p, &all, 1, &adamw);
        if (sums)
            sum = zn_page_crc(&id, 0, block, (uint32_t)(piece * STEP_STATE));
    }
    (void)sum;
}

static void *kernel_run(void *arg)
{
    const struct kernel_thread *t = arg;

    zk_thread_init();
    for (uint64_t p = t->index; p < t->k->pages; p += t->k->threads)
        kernel_page(t->k, p, t->sums);
    return NULL;
}

int zbench_kernels_measure(struct zbench_kernels *k, bool sums, double *ret_ns)
{
    struct kernel_thread threads[STEP_THREADS];
    uint64_t begin_ns = zb_now_ns();
    unsigned n;

    for (n = 0; n < k->threads; n++) {
        threads[n] = (struct kernel_thread){ .k = k, .index = n, .sums = sums };
        if (pthread_create(&threads[n].thread, NULL, kernel_run, &threads[n]) != 0)
            break;
    }
    for (unsigned i = 0; i < n; i++)
        (void)pthread_join(threads[i].thread, NULL);
    if (n < k->threads)
        return zb_fail(&k->z->err, -EAGAIN, "%u threads for the kernels: %m", k->threads);
    *ret_ns = (double)(zb_now_ns() - begin_ns) / (double)(k->pages * k->page_elems);
    return 0;
}

int zbench_kernels_open(struct zbench_kernels *k, struct zbench *z, uint64_t params,
                        uint64_t page_elems, unsigned threads)
{
    uint64_t page_bytes, seed = 1;
    float *floats;
    uint16_t *halves;
    int rc;

    *k = (struct zbench_kernels){ .z = z, .page_elems = page_elems, .threads = threads };
    rc = zk_select("auto", &k->ops, &z->err);

    if (rc == 0)
        rc =
            zb_layout_of(ZB_BF16, ZB_BF16, ZB_ADAMW, ZB_MOMENTS_F32, false, &k->layout, &k->z->err);
    if (rc < 0)
        return rc;
    k->pages = zb_max_u64(zb_min_u64(params, STEP_KERNEL_MAX) / k->page_elems, 1);
    page_bytes = k->page_elems * (2 * STEP_HALF + STEP_STATE);
    k->memory_bytes = k->pages * page_bytes + STEP_HUGE;
    k->memory =
        mmap(NULL, k->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (k->memory == MAP_FAILED) {
        k->memory = NULL;
        return zb_fail(&k->z->err, -ENOMEM, "%s for the kernels: %m",
                       zb_size_text(k->memory_bytes).s);
    }
    (void)madvise(k->memory, k->memory_bytes, MADV_HUGEPAGE);
    /* if a child shared it (such as the one that cleans up), writes would copy it to small pages */
    (void)madvise(k->memory, k->memory_bytes, MADV_DONTFORK);
    for (uint64_t p = 0; p < k->pages; p++) { /* small numbers everywhere, as in a run */
        halves = (uint16_t *)(void *)(k->memory + p * page_bytes);
        for (uint64_t i = 0; i < 2 * k->page_elems; i++)
            halves[i] = (uint16_t)(0x3c00 + (seed = seed * 6364136223846793005u + 1) % 512);
        floats = (float *)(void *)(halves + 2 * k->page_elems);
        for (uint64_t i = 0; i < k->page_elems * STEP_STATE / sizeof(float); i++)
            floats[i] = 0.01f;
    }
    return 0;
}

/* ---- orthogonalizing */

#define ORTHO_TIMES 8u /* matrices of a thread */

struct ortho_thread {
    const struct zk_ops *ops;
    pthread_t thread;
    uint64_t rows, cols;
    float *memory; /* the matrix */
    unsigned char *scratch;
    atomic_int *left; /* matrices that nobody has taken */
};

static void *ortho_run(void *arg)
{
    const struct ortho_thread *t = arg;

    zk_thread_init();
    while (atomic_fetch_sub(t->left, 1) > 0) /* it takes as long if it is orthogonal already */
        zk_ortho(t->ops, &zk_ortho_muon, t->memory, t->rows, t->cols, t->scratch);
    return NULL;
}

int zbench_ortho_measure(struct zbench_kernels *k, uint64_t rows, uint64_t cols, double *ret_ns)
{
    uint64_t elems = rows * cols, matrix = zb_matrix_bytes(elems);
    uint64_t bytes = zb_round_up(matrix + zb_ortho_bytes(rows, cols), STEP_HUGE);
    struct ortho_thread threads[STEP_THREADS];
    unsigned matrices = ORTHO_TIMES * k->threads;
    atomic_int left = (int)matrices;
    uint64_t begin_ns;
    unsigned ready, n = 0;

    for (ready = 0; ready < k->threads; ready++) {
        threads[ready] = (struct ortho_thread){ .ops = k->ops,
                                                .rows = rows,
                                                .cols = cols,
                                                .memory = aligned_alloc(STEP_HUGE, bytes),
                                                .left = &left };
        if (!threads[ready].memory)
            break;
        (void)madvise(threads[ready].memory, bytes, MADV_HUGEPAGE); /* as in the daemon */
        threads[ready].scratch = (unsigned char *)threads[ready].memory + matrix;
        for (uint64_t i = 0; i < elems; i++)
            threads[ready].memory[i] = (float)(i * 7919 % 1009) - 504;
        memset(threads[ready].scratch, 0, bytes - matrix);
    }
    begin_ns = zb_now_ns();
    while (n < ready && pthread_create(&threads[n].thread, NULL, ortho_run, &threads[n]) == 0)
        n++;
    for (unsigned i = 0; i < n; i++)
        (void)pthread_join(threads[i].thread, NULL);
    *ret_ns = (double)(zb_now_ns() - begin_ns) / (double)(elems * matrices);
    for (unsigned i = 0; i < ready; i++)
        free(threads[i].memory);
    return n == k->threads
               ? 0
               : zb_fail(&k->z->err, -EAGAIN, "%u threads for matrices: %m", k->threads);
}

void zbench_kernels_close(struct zbench_kernels *k)
{
    if (k->memory)
        (void)munmap(k->memory, k->memory_bytes);
    k->memory = NULL;
}

/* ---- the drive: a loop that only moves bytes, pages of state read and written in turn */

struct loop_io {
    struct zn_io io;
    struct loop *loop;
};

struct loop {
    struct zn_engine *e;
    struct loop_io ios[STEP_DEPTH];
    uint64_t slots, next, left;
    int rc;
};

static void loop_done(struct zn_io *io, int rc)
{
    struct loop *l = zb_container_of(io, struct loop_io, io)->loop;

    if (rc < 0)
        l->rc = rc;
    if (l->rc < 0 || l->left == 0)
        return;
    l->left--;
    if (io->op == ZN_WRITE)
        io->off_bytes = ZN_DATA_START + l->next++ % l->slots * io->len_bytes;
    io->op = io->op == ZN_READ ? ZN_WRITE : ZN_READ;
    l->rc = zn_submit(l->e, io);
}

int zbench_loop_measure(struct zbench *z, uint64_t rate, uint32_t bytes, double *ret_s)
{
    struct loop l = { .slots = STEP_LOOP_BYTES / bytes };
    uint64_t ios = zb_max_u64((uint64_t)(STEP_LOOP_S * (double)rate) / bytes, 2 * STEP_DEPTH);
    struct zn_fixed_options o = { .size_bytes = ZN_DATA_START + l.slots * bytes,
                                  .rate_bytes = rate,
                                  .latency_ns = STEP_LATENCY_US * 1000 };
    uint8_t *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t begin_ns;
    int rc;

    if (buffer == MAP_FAILED)
        return zb_fail(&z->err, -ENOMEM, "a buffer for the loop: %m");
    rc = zn_fixed_open(&l.e, &o, &z->err);
    if (rc < 0)
        return rc;
    l.left = ios - STEP_DEPTH;
    begin_ns = zb_now_ns();
    for (unsigned i = 0; i < STEP_DEPTH && l.rc == 0; i++) {
        l.ios[i] =
            (struct loop_io){ .loop = &l,
                              .io = { .op = ZN_READ,
                                      .lend = true,
                                      .buf = buffer,
                                      .len_bytes = bytes,
                                      .off_bytes = ZN_DATA_START + l.next++ % l.slots * bytes,
                                      .done = loop_done } };
        l.rc = zn_submit(l.e, &l.ios[i].io);
    }
    zbench_drain(l.e, STEP_DEPTH);
    *ret_s = (double)(zb_now_ns() - begin_ns) / 1e9 / ((double)ios * bytes);
    zn_close(l.e);
    (void)munmap(buffer, bytes);
    return l.rc < 0 ? zb_fail(&z->err, l.rc, "the loop on a device of a fixed rate: %m") : 0;
}
