/*
 * test_cuda_double.c - the host code of kernels/cuda/ on the double of CUDA (cuda_double.h): each
 * call fails once; devices are lost, alone; drivers lack something. And what the double refuses is
 * tested, since all else depends on it. The suite of all GPUs (test_gpu.c) runs on it, too.
 */
#include "tests/ztest.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/gpu.h"
#include "tests/unit/gpu/double/cuda_double.h"

#define SIZE CUDA_DOUBLE_GRANULARITY
#define PAGE 4096u

static void *library;
static const struct cuda_double *d;

/* ---- a job that uses every function */

struct job {
    struct zk_gpu *gpu;
    struct zk_gpu_stream *a, *b;
    struct zk_gpu_event *e;
    struct zk_gpu_mem *mem, *view;
    unsigned char *host; /* SIZE bytes; the first half is pinned */
    int fd;
    bool pinned;
    struct zb_err err;
};

static int job_open(struct job *j, const char *device)
{
    int rc;

    *j = (struct job){ .fd = eventfd(0, EFD_CLOEXEC) };
    j->host = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(j->fd >= 0 && j->host != MAP_FAILED);
    rc = zk_gpu_open(device, 0, &j->gpu, &j->err);
    if (rc == 0)
        rc = zk_gpu_stream_new(j->gpu, &j->a, &j->err);
    if (rc == 0)
        rc = zk_gpu_stream_new(j->gpu, &j->b, &j->err);
    if (rc == 0)
        rc = zk_gpu_event_new(j->gpu, &j->e, &j->err);
    if (rc == 0)
        rc = zk_gpu_pin(j->gpu, j->host, SIZE / 2, false, &j->err);
    j->pinned = rc == 0;
    return rc == 0 ? zk_gpu_alloc(j->gpu, SIZE, 0, &j->mem, &j->err) : rc;
}

static int job_share(struct job *j)
{
    struct zk_gpu_share share;
    int rc = zk_gpu_share(j->mem, 0, &share, &j->err);

    if (rc < 0)
        return rc;
    rc = zk_gpu_import(j->gpu, &share, false, &j->view, &j->err);
    zk_gpu_share_close(&share);
    return rc;
}

/* Bytes go to the device, are cast there to where they end, and come back by the other mapping. */
static int job_run(struct job *j)
{
    char *dev = zk_gpu_addr(j->mem);
    const struct zk_gpu_work work = { .op = ZK_GPU_CAST,
                                      .array = { .from = dev,
                                                 .to = dev + PAGE,
                                                 .n = 64,
                                                 .from_dtype = ZB_F32,
                                                 .to_dtype = ZB_F32 } };
    struct zk_gpu_usage usage;
    int rc;

    memset(j->host, 1, PAGE);
    rc = job_share(j);
    if (rc == 0)
        rc = zk_gpu_usage(j->gpu, &usage, &j->err);
    if (rc == 0)
        rc = zk_gpu_fill(j->a, dev + PAGE, 9, 512, &j->err);
    if (rc == 0)
        rc = zk_gpu_copy(j->a, ZK_GPU_TO_DEVICE, dev, j->host, 256, &j->err);
    if (rc == 0)
        rc = zk_gpu_launch(j->a, &work, &j->err);
    if (rc == 0)
        rc = zk_gpu_event_record(j->e, j->a, &j->err);
    if (rc == 0)
        rc = zk_gpu_event_wait(j->e, j->b, &j->err);
    if (rc == 0)
        rc = zk_gpu_copy(j->b, ZK_GPU_TO_HOST, j->host + PAGE, (char *)zk_gpu_addr(j->view) + PAGE,
                         512, &j->err);
    if (rc == 0)
        rc = zk_gpu_signal(j->b, j->fd, &j->err);
    if (rc == 0)
        rc = zk_gpu_stream_sync(j->b, &j->err);
    return rc == 0 ? zk_gpu_event_query(j->e, &j->err) : rc;
}

static void job_bytes(const struct job *j)
{
    eventfd_t n = 0;

    for (unsigned i = 0; i < 512; i++)
        assert_int_equal(j->host[PAGE + i], i < 256 ? 1 : 9);
    assert_true(eventfd_read(j->fd, &n) == 0 && n == 1);
}

static void job_close(struct job *j)
{
    if (j->gpu) {
        if (j->a)
            (void)zk_gpu_stream_sync(j->a, NULL);
        zk_gpu_free(j->view);
        zk_gpu_free(j->mem);
        zk_gpu_event_free(j->e);
        zk_gpu_stream_free(j->a);
        zk_gpu_stream_free(j->b);
        if (j->pinned)
            (void)zk_gpu_unpin(j->gpu, j->host, NULL);
        zk_gpu_close(j->gpu);
    }
    assert_int_equal(munmap(j->host, SIZE), 0);
    assert_int_equal(close(j->fd), 0);
}

/* ---- each call fails once */

/* A failure of these leaves the object: nothing else can be done. */
static bool frees(const char *call)
{
    static const char *const names[] = { "cuMemUnmap",       "cuMemAddressFree",
                                         "cuMemRelease",     "cudaStreamDestroy",
                                         "cudaEventDestroy", "cudaHostUnregister" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], call) == 0)
            return true;
    return false;
}

/* The n-th call fails; false: there are fewer. */
static bool fails_at(unsigned n, enum cuda_double_failure how)
{
    const char *call;
    struct job j;
    int rc;

    d->fail_at(n, how);
    rc = job_open(&j, "cuda:1");
    if (rc == 0)
        rc = job_run(&j);
    call = d->failed();
    if (rc == 0)
        job_bytes(&j); /* one that could do without the call, such as a test of exporting */
    else if (j.err.text[0] == '\0')
        fail_msg("%s has failed (%u), and nothing says so", call, n);
    job_close(&j);
    if (!call && rc < 0)
        fail_msg("%d, %s, and no call has failed", rc, j.err.text);
    call = d->failed();
    if (!(call && frees(call)) && d->left()[0] != '\0')
        fail_msg("%s are left after %s failed (%u)", d->left(), call, n);
    d->reset();
    return call != NULL;
}

static void each_call_fails_once(void **state)
{
    (void)state;
    for (enum cuda_double_failure how = CUDA_DOUBLE_UNKNOWN; how <= CUDA_DOUBLE_LOST; how++) {
        unsigned n = 1;

        while (fails_at(n, how))
            n++;
        assert_true(n > 80); /* the job makes as many calls */
    }
}

/* ---- several devices */

/* Reads 2 MiB from an address of its own memory on, of which the last part is not mapped. */
static void lose(struct job *j)
{
    const struct zk_gpu_work work = { .op = ZK_GPU_CAST,
                                      .array = { .from = (char *)zk_gpu_addr(j->mem) + PAGE,
                                                 .to = zk_gpu_addr(j->mem),
                                                 .n = SIZE / 4,
                                                 .from_dtype = ZB_F32,
                                                 .to_dtype = ZB_BF16 } };

    assert_int_equal(zk_gpu_launch(j->a, &work, &j->err), 0);
    assert_int_equal(zk_gpu_stream_sync(j->a, &j->err), -EFAULT);
    assert_non_null(strstr(j->err.text, "illegal"));
}

static void a_lost_device_is_alone(void **state)
{
    struct job lost, good;
    struct zk_gpu_mem *more = NULL;
    struct zk_gpu_stream *stream = NULL;

    (void)state;
    assert_int_equal(job_open(&lost, "cuda:0"), 0);
    assert_int_equal(job_open(&good, "cuda:1"), 0);
    assert_string_not_equal(zk_gpu_info(lost.gpu)->id, zk_gpu_info(good.gpu)->id);
    lose(&lost);
    assert_int_equal(zk_gpu_alloc(lost.gpu, SIZE, 0, &more, NULL), -EFAULT);
    assert_int_equal(zk_gpu_stream_new(lost.gpu, &stream, NULL), -EFAULT);
    assert_int_equal(zk_gpu_fill(lost.a, zk_gpu_addr(lost.mem), 1, 1, NULL), -EFAULT);
    assert_int_equal(zk_gpu_event_query(lost.e, NULL), -EFAULT);
    if (job_run(&good) != 0)
        fail_msg("the other device: %s", good.err.text);
    job_bytes(&good);
    job_close(&lost);
    job_close(&good);
    assert_string_equal(d->left(), "");
}

/* Memory of one device is not mapped for another. */
static void memory_of_another_device(void **state)
{
    struct job one, two;

    (void)state;
    assert_int_equal(job_open(&one, "cuda:0"), 0);
    assert_int_equal(job_open(&two, "cuda:1"), 0);
    assert_int_equal(zk_gpu_fill(two.a, zk_gpu_addr(one.mem), 1, 1, &two.err), 0);
    assert_int_equal(zk_gpu_stream_sync(two.a, &two.err), -EFAULT);
    assert_int_equal(job_run(&one), 0);
    job_bytes(&one);
    job_close(&one);
    job_close(&two);
    assert_string_equal(d->left(), "");
}

/* ---- drivers and devices that lack something */

static void those_that_are_refused(void **state)
{
    static const struct {
        const char *device;
        struct cuda_double_traits traits;
        const char *says;
    } rows[] = {
        { "cuda:2", { .capability = 9 }, "there are fewer devices" },
        { "cuda", { .capability = 7 }, "compute capability 7.0, below 8.0" },
        { "cuda", { .capability = 9, .no_map = true }, "cannot map its memory" },
        { "cuda", { .capability = 9, .missing = "cuDeviceGet" }, "has no cuDeviceGet" },
        { "cuda", { .capability = 9, .missing = "cuMemMap" }, "has no cuMemMap" },
        { "cuda",
          { .capability = 9, .missing = "cuMemImportFromShareableHandle" },
          "has no cuMemImportFromShareableHandle" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct zb_err err = { 0 };
        struct zk_gpu *g = NULL;
        int rc;

        *d->traits = rows[i].traits;
        rc = zk_gpu_open(rows[i].device, 0, &g, &err);
        if (g || rc != -ENODEV || strncmp(err.text, "no GPU: ", 8) != 0 ||
            !strstr(err.text, rows[i].says))
            fail_msg("row %zu: %d, %s", i, rc, err.text);
        assert_string_equal(d->left(), "");
        d->reset();
    }
}

/* An environment that exports no memory: the device opens, and shares nothing. */
static void no_export(void **state)
{
    struct zk_gpu_share share;
    struct job j;

    (void)state;
    d->traits->no_export = true;
    assert_int_equal(job_open(&j, "cuda"), 0);
    assert_int_equal(zk_gpu_share(j.mem, 0, &share, &j.err), -ENOTSUP);
    job_close(&j);
}

/* A driver that knows no access for reading only maps shared memory for writing. */
static void no_read_access(void **state)
{
    (void)state;
    for (int without = 0; without < 2; without++) {
        struct job j;

        d->traits->no_read_access = without != 0;
        assert_int_equal(job_open(&j, "cuda"), 0);
        assert_int_equal(job_share(&j), 0);
        assert_int_equal(zk_gpu_fill(j.a, zk_gpu_addr(j.view), 1, 1, &j.err), 0);
        assert_int_equal(zk_gpu_stream_sync(j.a, &j.err), without ? 0 : -EFAULT);
        job_close(&j);
        assert_string_equal(d->left(), "");
        d->reset();
    }
}

static void read_only_pins(void **state)
{
    unsigned char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    for (int can = 0; can < 2; can++) {
        struct job j;

        d->traits->pins_read_only = can != 0;
        assert_int_equal(job_open(&j, "cuda"), 0);
        assert_int_equal(zk_gpu_pin(j.gpu, page, PAGE, true, &j.err), can ? 0 : -ENOTSUP);
        /* A failure is over when it was reported: the next kernel does not report it again. */
        assert_int_equal(job_run(&j), 0);
        job_bytes(&j);
        if (can)
            assert_int_equal(zk_gpu_unpin(j.gpu, page, &j.err), 0);
        job_close(&j);
        assert_string_equal(d->left(), "");
        d->reset();
    }
    assert_int_equal(munmap(page, PAGE), 0);
}

/* Only copies of pinned memory run in parallel; all have the right bytes, also across the end of
 * what is pinned. */
static void copies_of_other_memory(void **state)
{
    static const struct {
        size_t at;
        unsigned pageable; /* copies of the runtime, to the device and back */
    } rows[] = { { 0, 0 }, { SIZE / 2, 2 }, { SIZE / 2 - PAGE, 2 } };
    struct job j;

    (void)state;
    assert_int_equal(job_open(&j, "cuda"), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        unsigned before = d->pageable();
        unsigned char *host = j.host + rows[i].at;

        memset(host, (int)i + 1, (size_t)2 * PAGE);
        assert_int_equal(
            zk_gpu_copy(j.a, ZK_GPU_TO_DEVICE, zk_gpu_addr(j.mem), host, 2ull * PAGE, &j.err), 0);
        assert_int_equal(zk_gpu_stream_sync(j.a, &j.err), 0);
        memset(host, 0, (size_t)2 * PAGE);
        assert_int_equal(
            zk_gpu_copy(j.a, ZK_GPU_TO_HOST, host, zk_gpu_addr(j.mem), 2ull * PAGE, &j.err), 0);
        assert_int_equal(zk_gpu_stream_sync(j.a, &j.err), 0);
        for (unsigned k = 0; k < 2 * PAGE; k++)
            assert_int_equal(host[k], i + 1);
        assert_int_equal(d->pageable() - before, rows[i].pageable);
    }
    job_close(&j);
    assert_string_equal(d->left(), "");
}

/* ---- what the double refuses: its functions, called directly */

#define CUDA_FUNCTIONS(do_)                                                                      \
    do_(cudaSetDevice) do_(cudaMemGetInfo) do_(cudaStreamCreateWithFlags) do_(cudaStreamDestroy) \
        do_(cudaStreamSynchronize) do_(cudaEventCreateWithFlags) do_(cudaEventDestroy)           \
            do_(cudaEventRecord) do_(cudaMemcpyAsync) do_(cudaLaunchHostFunc)                    \
                do_(cudaHostRegister) do_(cudaHostUnregister)                                    \
                    do_(cudaGetDriverEntryPointByVersion) do_(cudaGetLastError)
#define CUDA_MEMBER(f) __typeof__(f) *f;
#define DRIVER_FUNCTIONS(do_)                                                         \
    do_(cuMemCreate) do_(cuMemRelease) do_(cuMemAddressReserve) do_(cuMemAddressFree) \
        do_(cuMemMap) do_(cuMemUnmap) do_(cuMemSetAccess)

static struct {
    CUDA_FUNCTIONS(CUDA_MEMBER)
    DRIVER_FUNCTIONS(CUDA_MEMBER)
} c;

static void functions(void)
{
    enum cudaDriverEntryPointQueryResult found;

#define CUDA_FIND(f) *(void **)&c.f = dlsym(library, #f);
    CUDA_FUNCTIONS(CUDA_FIND)
    assert_non_null(c.cudaGetDriverEntryPointByVersion);
#define DRIVER_FIND(f)                                                                           \
    assert_int_equal(                                                                            \
        c.cudaGetDriverEntryPointByVersion(#f, (void **)&c.f, 12000, cudaEnableDefault, &found), \
        cudaSuccess);
    DRIVER_FUNCTIONS(DRIVER_FIND)
}

static void refuses_streams_and_events(void **state)
{
    cudaStream_t s = NULL;
    cudaEvent_t e = NULL;
    char byte = 0;

    (void)state;
    functions();
    assert_int_equal(c.cudaSetDevice(0), cudaSuccess);
    assert_int_equal(c.cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(c.cudaEventCreateWithFlags(&e, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(c.cudaMemcpyAsync(&byte, &byte, 1, cudaMemcpyHostToDevice, s),
                     cudaErrorInvalidValue); /* not device memory */
    assert_int_equal(c.cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(c.cudaGetLastError(), cudaSuccess);
    assert_int_equal(c.cudaSetDevice(1), cudaSuccess);
    assert_int_equal(c.cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle);
    assert_int_equal(c.cudaSetDevice(0), cudaSuccess);
    assert_int_equal(c.cudaEventDestroy(e), cudaSuccess);
    assert_int_equal(c.cudaEventRecord(e, s), cudaErrorInvalidResourceHandle);
    assert_int_equal(c.cudaStreamDestroy(s), cudaSuccess);
    assert_int_equal(c.cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle);
    assert_int_equal(c.cudaSetDevice(2), cudaErrorInvalidDevice);
}

static void ask_memory(void *arg)
{
    size_t free_bytes, total_bytes;

    *(cudaError_t *)arg = c.cudaMemGetInfo(&free_bytes, &total_bytes);
}

static void *ask_memory_on_a_thread(void *arg)
{
    ask_memory(arg);
    return NULL;
}

static void refuses_calls_without_a_device(void **state)
{
    cudaError_t here = cudaSuccess, within = cudaSuccess, elsewhere = cudaSuccess;
    cudaStream_t s = NULL;
    pthread_t thread;

    (void)state;
    functions();
    assert_int_equal(c.cudaSetDevice(0), cudaSuccess);
    ask_memory(&here);
    assert_int_equal(here, cudaSuccess);
    assert_int_equal(c.cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(c.cudaLaunchHostFunc(s, ask_memory, &within), cudaSuccess);
    assert_int_equal(c.cudaStreamSynchronize(s), cudaSuccess);
    assert_int_equal(within, cudaErrorNotPermitted);
    assert_int_equal(c.cudaStreamDestroy(s), cudaSuccess);
    assert_int_equal(pthread_create(&thread, NULL, ask_memory_on_a_thread, &elsewhere), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(elsewhere, cudaErrorDeviceUninitialized);
}

static void refuses_memory(void **state)
{
    const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
    CUmemGenericAllocationHandle h = 0, other = 0;
    CUdeviceptr at = 0;

    (void)state;
    functions();
    assert_int_equal(c.cudaSetDevice(0), cudaSuccess);
    assert_int_equal(c.cuMemCreate(&h, SIZE + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(c.cuMemCreate(&h, UINT64_C(1) << 40, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(c.cuMemCreate(&h, SIZE, &prop, 0), CUDA_SUCCESS);
    assert_int_equal(c.cuMemCreate(&other, 2 * SIZE, &prop, 0), CUDA_SUCCESS);
    assert_int_equal(c.cuMemAddressReserve(&at, SIZE / 2, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(c.cuMemAddressReserve(&at, SIZE, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(at % SIZE, 0);
    assert_int_equal(c.cuMemMap(at, SIZE, 0, other, 0), CUDA_ERROR_INVALID_VALUE); /* longer */
    assert_int_equal(c.cuMemMap(at, SIZE, 0, h, 0), CUDA_SUCCESS);
    assert_int_equal(c.cuMemMap(at, SIZE, 0, h, 0), CUDA_ERROR_INVALID_VALUE); /* twice */
    assert_int_equal(c.cuMemAddressFree(at, SIZE), CUDA_ERROR_INVALID_VALUE);  /* mapped */
    assert_int_equal(c.cuMemRelease(h), CUDA_SUCCESS); /* the map keeps the memory */
    assert_int_equal(c.cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(c.cuMemUnmap(at, 2 * SIZE), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(c.cuMemUnmap(at, SIZE), CUDA_SUCCESS);
    assert_int_equal(c.cuMemUnmap(at, SIZE), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(c.cuMemAddressFree(at, SIZE), CUDA_SUCCESS);
    assert_string_equal(d->left(), "1 handles");
    assert_int_equal(c.cuMemRelease(other), CUDA_SUCCESS);
    assert_string_equal(d->left(), "");
}

static void refuses_pins(void **state)
{
    unsigned char *host = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const unsigned flags = cudaHostRegisterPortable;

    (void)state;
    functions();
    assert_int_equal(c.cudaSetDevice(0), cudaSuccess);
    assert_int_equal(c.cudaHostRegister(host, SIZE, flags), cudaErrorInvalidValue); /* read-only */
    assert_int_equal(mprotect(host, SIZE, PROT_READ | PROT_WRITE), 0);
    assert_int_equal(c.cudaHostRegister(host, SIZE / 2, flags), cudaSuccess);
    assert_int_equal(c.cudaHostRegister(host + PAGE, PAGE, flags),
                     cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(c.cudaHostUnregister(host + PAGE), cudaErrorHostMemoryNotRegistered);
    assert_int_equal(c.cudaHostUnregister(host), cudaSuccess);
    assert_int_equal(munmap(host, SIZE), 0);
    assert_int_equal(c.cudaHostRegister(host, SIZE, flags), cudaErrorInvalidValue);
    assert_string_equal(d->left(), "");
}

/* Two devices pin the same range: the driver, which pins for both, is asked once. */
static void pins_for_both(void **state)
{
    unsigned char *host =
        mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct zk_gpu *a = NULL, *b = NULL;
    struct zb_err err = { 0 };

    (void)state;
    assert_int_equal(zk_gpu_open("cuda:0", 0, &a, &err), 0);
    assert_int_equal(zk_gpu_open("cuda:1", 0, &b, &err), 0);
    assert_int_equal(zk_gpu_pin(a, host, SIZE, false, &err), 0);
    assert_int_equal(zk_gpu_pin(a, host, SIZE, false, &err), -EEXIST); /* by one device: once */
    err = (struct zb_err){ 0 };
    assert_int_equal(zk_gpu_pin(b, host, SIZE / 2, false, &err), -EEXIST); /* another range */
    err = (struct zb_err){ 0 };
    assert_int_equal(zk_gpu_pin(b, host, SIZE, false, &err), 0);
    assert_string_equal(d->left(), "1 pins");
    assert_true(zk_gpu_pinned_bytes(a) == SIZE && zk_gpu_pinned_bytes(b) == SIZE);
    assert_int_equal(zk_gpu_unpin(a, host, &err), 0);
    assert_int_equal(zk_gpu_unpin(a, host, &err), -ENOENT);
    assert_string_equal(d->left(), "1 pins");
    assert_int_equal(zk_gpu_unpin(b, host, &err), 0);
    assert_string_equal(d->left(), "");
    zk_gpu_close(a);
    zk_gpu_close(b);
    assert_int_equal(munmap(host, SIZE), 0);
}

static int setup(void **state)
{
    (void)state;
    library = dlopen(DOUBLE "/zk_cuda.so", RTLD_NOW | RTLD_LOCAL);
    d = library ? dlsym(library, "cuda_double") : NULL;
    return d && setenv("ZSHARD_PLUGINS", DOUBLE, 1) == 0 ? 0 : -1;
}

static int begin(void **state)
{
    (void)state;
    d->reset();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(refuses_streams_and_events, begin),
        cmocka_unit_test_setup(refuses_calls_without_a_device, begin),
        cmocka_unit_test_setup(refuses_memory, begin),
        cmocka_unit_test_setup(refuses_pins, begin),
        cmocka_unit_test_setup(each_call_fails_once, begin),
        cmocka_unit_test_setup(a_lost_device_is_alone, begin),
        cmocka_unit_test_setup(memory_of_another_device, begin),
        cmocka_unit_test_setup(those_that_are_refused, begin),
        cmocka_unit_test_setup(no_export, begin),
        cmocka_unit_test_setup(no_read_access, begin),
        cmocka_unit_test_setup(read_only_pins, begin),
        cmocka_unit_test_setup(copies_of_other_memory, begin),
        cmocka_unit_test_setup(pins_for_both, begin),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, setup, NULL);
}
