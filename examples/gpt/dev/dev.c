/*
 * dev.c - see dev.h. Which device it is, is asked in three places: to open it, for a kernel, and
 * for a product.
 */
#include "examples/gpt/dev/dev.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "examples/gpt/dev/kern.h"
#include "examples/gpt/dev/matmul.h"
#include "kernels/gpu.h"
#include "kernels/gpu_own.h"

#define BIAS_ALIGN 16u /* bytes */

struct gpt_dev {
    struct zk_gpu *gpu;
    struct zk_gpu_stream *stream;
    struct zk_gpu_stream *beside; /* of copies; NULL until there is one */
    struct zk_gpu_event *marks[GPT_DEV_MARKS];
    struct zk_gpu_mem *memory;
    void *host;
    uint64_t host_bytes;
    bool pinned;
    void *theirs; /* pinned, of somebody else's */
    bool emulated;
    void *native;              /* cuda: the stream */
    gpt_kern_cuda_fn *kernels; /* cuda */
    struct zk_lt *lt;
    struct zk_gpu_mem *workspace; /* of lt */
    struct zb_err err;            /* the first failure; code 0: none */
};

/* ---- opening */

static bool name_is(const char *name, const char *kind)
{
    size_t n = strlen(kind);

    return strncmp(name, kind, n) == 0 && (name[n] == '\0' || strchr(":@*,/", name[n]));
}

bool gpt_dev_named(const char *name)
{
    return name_is(name, "cuda") || name_is(name, "emulated");
}

/* What "cuda" needs besides: our kernels, and products. */
static int cuda_open(struct gpt_dev *d)
{
    void *kernels = zk_gpu_symbol(d->gpu, GPT_KERN_CUDA);
    const char *text = "";
    int rc = kernels ? zk_lt_open(&d->lt, &d->err)
                     : zb_fail(&d->err, -ENODEV, "no GPU: its plugin was built without zgpt");

    memcpy(&d->kernels, &kernels, sizeof(kernels));
    if (rc == 0)
        rc = zk_gpu_enter(d->gpu, &d->err);
    if (rc == 0 && d->kernels(NULL, 0, NULL, &text) != 0)
        rc = zb_fail(&d->err, -EIO, "loading the model's kernels: %s", text);
    return rc < 0 ? rc : zk_gpu_alloc(d->gpu, ZB_LT_WORKSPACE_BYTES, 0, &d->workspace, &d->err);
}

int gpt_dev_open(struct gpt_dev **ret, const char *name, void *stream, struct zb_err *err)
{
    struct gpt_dev *d = calloc(1, sizeof(*d));
    int rc;

    assert(gpt_dev_named(name));
    if (!d)
        return zb_fail(err, -ENOMEM, "--device %s: %m", name);
    d->emulated = name_is(name, "emulated");
    d->native = stream;
    rc = zk_gpu_adopt(name, stream, &d->gpu, &d->stream, &d->err);
    for (unsigned i = 0; i < GPT_DEV_MARKS && rc == 0; i++)
        rc = zk_gpu_event_new(d->gpu, &d->marks[i], &d->err);
    if (rc == 0 && !d->emulated)
        rc = cuda_open(d);
    if (rc < 0) {
        (void)zb_fail(err, rc, "--device %s: %s", name, d->err.text);
        gpt_dev_close(d);
        return rc;
    }
    *ret = d;
    return 0;
}

void gpt_dev_close(struct gpt_dev *d)
{
    if (!d)
        return;
    if (d->stream)
        (void)zk_gpu_stream_sync(d->stream, NULL); /* nothing uses the memory any more */
    zk_gpu_stream_free(d->beside);
    for (unsigned i = 0; i < GPT_DEV_MARKS; i++)
        zk_gpu_event_free(d->marks[i]);
    zk_lt_close(d->lt);
    zk_gpu_free(d->workspace);
    zk_gpu_free(d->memory);
    if (d->pinned)
        (void)zk_gpu_unpin(d->gpu, d->host, NULL);
    if (d->theirs)
        (void)zk_gpu_unpin(d->gpu, d->theirs, NULL);
    if (d->host)
        (void)munmap(d->host, d->host_bytes);
    zk_gpu_disown(d->gpu, d->stream);
    free(d);
}

int gpt_dev_error(const struct gpt_dev *d, struct zb_err *err)
{
    return d->err.code == 0 ? 0 : zb_fail(err, d->err.code, "the device: %s", d->err.text);
}

/* ---- memory */

void *gpt_dev_memory(struct gpt_dev *d, uint64_t bytes, const char *what)
{
    struct zb_err why = { 0 };
    int rc;

    assert(!d->memory);
    if (d->err.code != 0)
        return NULL;
    rc = zk_gpu_alloc(d->gpu, bytes, 0, &d->memory, &why);
    if (rc < 0) {
        (void)zb_fail(&d->err, rc, "%s take %" PRIu64 " bytes: %s", what, bytes, why.text);
        return NULL;
    }
    return zk_gpu_addr(d->memory);
}

void *gpt_dev_host(struct gpt_dev *d, uint64_t bytes)
{
    void *host;

    assert(!d->host);
    if (d->err.code != 0)
        return NULL;
    bytes = zb_round_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
        (void)zb_fail(&d->err, -errno, "%" PRIu64 " bytes of host memory: %m", bytes);
        return NULL;
    }
    d->host = host;
    d->host_bytes = bytes;
    d->pinned = zk_gpu_pin(d->gpu, host, bytes, false, NULL) == 0;
    return host;
}

void gpt_dev_pin(struct gpt_dev *d, void *memory, uint64_t bytes)
{
    assert(!d->theirs);
    if (d->err.code == 0 && zk_gpu_pin(d->gpu, memory, bytes, false, NULL) == 0)
        d->theirs = memory;
}

uint64_t gpt_dev_allocated(const struct gpt_dev *d)
{
    return (d->memory ? zk_gpu_len(d->memory) : 0) + (d->workspace ? zk_gpu_len(d->workspace) : 0);
}

/* ---- works; each does nothing behind a failure, and leaves its own in d->err */

static void emulated_kernel(struct gpt_dev *d, const struct gpt_kern *k)
{
    struct gpt_kern_use kern_uses[GPT_KERN_USES_MAX];
    struct zk_gpu_use uses[GPT_KERN_USES_MAX];
    unsigned n = gpt_kern_uses(k, kern_uses);

    for (unsigned i = 0; i < n; i++)
        uses[i] =
            (struct zk_gpu_use){ kern_uses[i].at, kern_uses[i].len_bytes, kern_uses[i].writes };
    (void)zk_gpu_call(d->stream, gpt_kern_host, k, sizeof(*k), uses, n, &d->err);
}

static void cuda_kernel(struct gpt_dev *d, const struct gpt_kern *k)
{
    const char *text = "";
    int e;

    if (zk_gpu_enter(d->gpu, &d->err) < 0)
        return;
    e = d->kernels(k, gpt_kern_teams(k), d->native, &text);
    if (e != 0)
        (void)zb_fail(&d->err, -EIO, "kernel %d: %s (%d)", (int)k->op, text, e);
}

void gpt_dev_kernel(struct gpt_dev *d, const struct gpt_kern *k)
{
    assert(k->op >= 1 && k->op < GPT_KERN_OP_END);
    if (d->err.code != 0)
        return;
    if (d->emulated)
        emulated_kernel(d, k);
    else
        cuda_kernel(d, k);
}

static void emulated_matmul(struct gpt_dev *d, const struct gpt_matmul *mm)
{
    const struct zk_gpu_use uses[] = {
        { offsetof(struct gpt_matmul, a.at),
          gpt_mat_bytes(&mm->a, mm->a.t ? mm->k : mm->m, mm->a.t ? mm->m : mm->k, mm->batch,
                        mm->dtype),
          false },
        { offsetof(struct gpt_matmul, b.at),
          gpt_mat_bytes(&mm->b, mm->b.t ? mm->n : mm->k, mm->b.t ? mm->k : mm->n, mm->batch,
                        mm->dtype),
          false },
        { offsetof(struct gpt_matmul, d.at),
          gpt_mat_bytes(&mm->d, mm->m, mm->n, mm->batch, mm->d_dtype), true },
        { offsetof(struct gpt_matmul, bias), mm->bias ? mm->n * gpt_dev_bytes(mm->d_dtype) : 0,
          false },
    };

    (void)zk_gpu_call(d->stream, gpt_matmul_host, mm, sizeof(*mm), uses,
                      sizeof(uses) / sizeof(uses[0]), &d->err);
}

static void matmul(struct gpt_dev *d, const struct gpt_matmul *mm)
{
    const struct zk_lt_product product = gpt_matmul_lt(mm);

    if (d->err.code != 0)
        return;
    if (d->emulated)
        emulated_matmul(d, mm);
    else if (zk_gpu_enter(d->gpu, &d->err) == 0)
        (void)zk_lt_matmul(d->lt, &product, zk_gpu_addr(d->workspace), d->native, &d->err);
}

/* cuBLASLt adds biases that are aligned; others have a kernel, on every device. */
void gpt_dev_matmul(struct gpt_dev *d, const struct gpt_matmul *mm)
{
    struct gpt_matmul plain = *mm;

    assert(mm->m > 0 && mm->n > 0 && mm->k > 0 && mm->batch > 0 && !mm->d.t);
    assert(!mm->bias || mm->batch == 1);
    assert(mm->beta == 0.0f || mm->d_dtype == GPT_DEV_F32);
    if (!mm->bias || (uintptr_t)mm->bias % BIAS_ALIGN == 0) {
        matmul(d, mm);
        return;
    }
    plain.bias = NULL;
    matmul(d, &plain);
    gpt_dev_kernel(d, &(struct gpt_kern){ .op = GPT_KERN_BIAS,
                                          .dtype = mm->d_dtype,
                                          .bias = { .b = mm->bias,
                                                    .y = (void *)(uintptr_t)mm->d.at,
                                                    .rows = mm->m,
                                                    .cols = mm->n,
                                                    .ld = mm->d.ld } });
}

void gpt_dev_zero(struct gpt_dev *d, void *dev, uint64_t bytes)
{
    if (d->err.code == 0)
        (void)zk_gpu_fill(d->stream, dev, 0, bytes, &d->err);
}

void gpt_dev_round(struct gpt_dev *d, const float *from, void *to, enum gpt_dtype_dev dtype,
                   uint64_t n)
{
    struct zk_gpu_work work = { .op = ZK_GPU_CAST,
                                .array = { .from = from,
                                           .to = to,
                                           .n = n,
                                           .from_dtype = ZB_F32,
                                           .to_dtype = dtype == GPT_DEV_BF16 ? ZB_BF16 : ZB_F16 } };

    if (d->err.code == 0)
        (void)zk_gpu_launch(d->stream, &work, &d->err);
}

void gpt_dev_up(struct gpt_dev *d, void *dev, const void *host, uint64_t bytes)
{
    if (d->err.code == 0)
        (void)zk_gpu_copy(d->stream, ZK_GPU_TO_DEVICE, dev, host, bytes, &d->err);
}

void gpt_dev_down(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes)
{
    if (d->err.code == 0)
        (void)zk_gpu_copy(d->stream, ZK_GPU_TO_HOST, host, dev, bytes, &d->err);
}

void gpt_dev_mark(struct gpt_dev *d, unsigned mark)
{
    if (d->err.code == 0)
        (void)zk_gpu_event_record(d->marks[mark], d->stream, &d->err);
}

static void copy_beside(struct gpt_dev *d, enum zk_gpu_way way, void *to, const void *from,
                        uint64_t bytes, unsigned before, unsigned after)
{
    int rc = d->err.code;

    if (rc == 0 && !d->beside)
        rc = zk_gpu_stream_new(d->gpu, &d->beside, &d->err);
    if (rc == 0)
        rc = zk_gpu_event_wait(d->marks[before], d->beside, &d->err);
    if (rc == 0)
        rc = zk_gpu_copy(d->beside, way, to, from, bytes, &d->err);
    if (rc == 0)
        (void)zk_gpu_event_record(d->marks[after], d->beside, &d->err);
}

void gpt_dev_up_beside(struct gpt_dev *d, void *dev, const void *host, uint64_t bytes,
                       unsigned before, unsigned after)
{
    copy_beside(d, ZK_GPU_TO_DEVICE, dev, host, bytes, before, after);
}

void gpt_dev_down_beside(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes,
                         unsigned before, unsigned after)
{
    copy_beside(d, ZK_GPU_TO_HOST, host, dev, bytes, before, after);
}

void gpt_dev_behind(struct gpt_dev *d, unsigned mark)
{
    if (d->err.code == 0)
        (void)zk_gpu_event_wait(d->marks[mark], d->stream, &d->err);
}

bool gpt_dev_reached(struct gpt_dev *d, unsigned mark)
{
    return d->err.code != 0 || zk_gpu_event_query(d->marks[mark], NULL) != -EAGAIN;
}

bool gpt_dev_wait(struct gpt_dev *d, unsigned mark, bool (*tick)(void *arg), void *arg)
{
    const struct timespec moment = { .tv_nsec = 20000 };

    while (d->err.code == 0) {
        int rc = zk_gpu_event_query(d->marks[mark], &d->err);

        if (rc == 0)
            return true;
        if (rc == -EAGAIN && tick && !tick(arg))
            return false;
        if (rc == -EAGAIN)
            (void)nanosleep(&moment, NULL);
    }
    return false;
}
