#include "bench/fio.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

#define FIO_ARGS   32
#define FIO_WORD   (PATH_MAX + 128)
#define FIO_OUTPUT 262144u /* its output has about 10 KiB */

/* fio's command line, word by word. */
struct fio_words {
    char words[FIO_ARGS][FIO_WORD];
    char *argv[FIO_ARGS + 1];
    unsigned count;
};

static void fio_word(struct fio_words *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void fio_word(struct fio_words *f, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(f->words[f->count], sizeof(f->words[0]), fmt, ap);
    va_end(ap);
    f->argv[f->count] = f->words[f->count];
    f->argv[++f->count] = NULL;
}

static void fio_command(const struct zbench_fio *q, struct fio_words *f)
{
    f->count = 0;
    fio_word(f, "env");
    fio_word(f, "GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
    fio_word(f, "fio");
    fio_word(f, "--name=zbench");
    fio_word(f, "--filename=%s", q->path);
    fio_word(f, "--rw=%s", q->rw);
    fio_word(f, "--bs=%u", q->block_bytes);
    fio_word(f, "--iodepth=%u", q->depth);
    fio_word(f, "--ioengine=io_uring");
    fio_word(f, "--registerfiles=1");
    fio_word(f, "--fixedbufs=%d", q->fixed_bufs);
    fio_word(f, "--direct=%d", q->direct);
    fio_word(f, "--offset=%llu", (unsigned long long)q->offset_bytes);
    fio_word(f, "--size=%llu", (unsigned long long)q->size_bytes);
    fio_word(f, "--time_based");
    fio_word(f, "--runtime=%.0fms", q->seconds * 1e3);
    fio_word(f, "--ramp_time=%.0fms", q->ramp_s * 1e3);
    fio_word(f, "--norandommap");
    fio_word(f, "--randrepeat=0");
    fio_word(f, "--scramble_buffers=0");
    /* What gtod_reduce=1 switches off, except for the clock: with gtod_reduce, slices of fio would
     * end up to 64 requests late, and be longer than ours. */
    fio_word(f, "--disable_lat=1");
    fio_word(f, "--disable_clat=1");
    fio_word(f, "--disable_slat=1");
    fio_word(f, "--disable_bw_measurement=1");
    fio_word(f, "--invalidate=0");
    fio_word(f, "--allow_file_create=0");
    fio_word(f, "--thread");
    fio_word(f, "--output-format=json");
}

/* Runs a program and keeps its output. Returns its exit status, or a negative errno. */
static int fio_child(char **argv, char *output, size_t size)
{
    int fds[2], status = 0;
    size_t len = 0;
    ssize_t n;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    pid = fork();
    if (pid == 0) {
        if (dup2(fds[1], STDOUT_FILENO) >= 0)
            (void)execvp(argv[0], argv);
        _exit(127);
    }
    (void)close(fds[1]);
    if (pid < 0) {
        n = -errno;
        (void)close(fds[0]);
        return (int)n;
    }
    while ((n = read(fds[0], output + len, size - 1 - len)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        len += n > 0 ? (size_t)n : 0;
        if (len == size - 1)
            break; /* too much: SIGPIPE ends the program */
    }
    output[len] = '\0';
    (void)close(fds[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -EINTR;
}

/* Sums of both directions from fio's output; false: an unknown format. io_bytes counts what was
 * completed after the ramp, as we do; total_ios would count what was submitted after it. */
static bool fio_numbers(const char *output, uint32_t block_bytes, double *ret_mib_s,
                        double *ret_cpu_us)
{
    const char *brace = strchr(output, '{'); /* lines before it are remarks */
    json_t *root = brace ? json_loads(brace, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    double bytes = 0, runtime_ms = 0, cpu;

    for (int i = 0; i < 2; i++) {
        json_t *way = json_object_get(job, i == 0 ? "read" : "write");
        double ms = json_number_value(json_object_get(way, "runtime"));

        bytes += json_number_value(json_object_get(way, "io_bytes"));
        runtime_ms = ms > runtime_ms ? ms : runtime_ms;
    }
    cpu = (json_number_value(json_object_get(job, "usr_cpu")) +
           json_number_value(json_object_get(job, "sys_cpu"))) /
          100 * json_number_value(json_object_get(job, "job_runtime"));
    json_decref(root);
    if (bytes == 0 || runtime_ms == 0)
        return false;
    *ret_mib_s = bytes / (double)ZB_MIB / (runtime_ms / 1e3);
    if (ret_cpu_us)
        *ret_cpu_us = cpu * 1e3 / (bytes / block_bytes);
    return true;
}

int zbench_fio_run(struct zbench *z, const struct zbench_fio *f, double *ret_mib_s,
                   double *ret_cpu_us)
{
    static char output[FIO_OUTPUT];
    static struct fio_words words;
    int rc;

    fio_command(f, &words);
    rc = fio_child(words.argv, output, sizeof(output));
    if (rc != 0)
        return zb_fail(&z->err, rc < 0 ? rc : -EIO, "fio failed (status %d) with: %s", rc, f->rw);
    if (!fio_numbers(output, f->block_bytes, ret_mib_s, ret_cpu_us))
        return zb_fail(&z->err, -EPROTO, "unknown output of fio: %.200s", output);
    return 0;
}

void zbench_fio_print(const struct zbench *z, const struct zbench_fio *f)
{
    static struct fio_words words;
    static char line[FIO_WORD + 1024];
    size_t len = 0;

    fio_command(f, &words);
    for (unsigned i = 0; i < words.count && len < sizeof(line); i++)
        len += (size_t)snprintf(line + len, sizeof(line) - len, "%s%s", i > 0 ? " " : "",
                                words.argv[i]);
    zbench_note(z, "fio's command line: %s", line);
}

bool zbench_fio_may_lock(uint64_t bytes)
{
    struct rlimit lock;

    return geteuid() == 0 || (getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur >= bytes);
}

int zbench_fio_find(struct zbench *z)
{
    char name[] = "fio", version[] = "--version", output[256];
    char *argv[] = { name, version, NULL };
    int rc = fio_child(argv, output, sizeof(output));

    if (rc != 0)
        return zb_fail(&z->err, -ENOENT,
                       "fio, the reference, does not run here (Debian: apt-get install fio)");
    output[strcspn(output, "\n")] = '\0';
    zbench_note(z, "reference: %s", output);
    return 0;
}
