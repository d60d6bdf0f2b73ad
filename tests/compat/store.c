#include "tests/compat/compat.h"

#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "nvme/zn_catalog.h"

static void shell(const char *command)
{
    int status = system(command); /* NOLINT: names of our own */

    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("status %#x of: %s", (unsigned)status, command);
}

static void dir_new(struct zi_daemon *d)
{
    *d = (struct zi_daemon){ 0 };
    (void)snprintf(d->dir, sizeof(d->dir), "%s/zshard-test-XXXXXX", ztest_folder());
    assert_non_null(mkdtemp(d->dir));
    (void)snprintf(d->socket, sizeof(d->socket), "%s/sock", d->dir);
    (void)snprintf(d->data, sizeof(d->data), "%s/data", d->dir);
    (void)snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
}

/* The second data directory. */
static const char *more(const struct zi_daemon *d)
{
    static char path[80];

    (void)snprintf(path, sizeof(path), "%s/more", d->dir);
    return path;
}

const char *const *co_options(const struct zi_daemon *d, const char *page_elems, const char *io)
{
    static const char *options[] = { "--paths",      NULL,           "--page-elems",
                                     NULL,           "--io",         NULL,
                                     "--host-bytes", "32M",          "--ring-bytes",
                                     "512K",         "--timeout-ms", "20000",
                                     "--nvme-bytes", "16M",          NULL };

    options[1] = more(d);
    options[3] = page_elems;
    options[5] = io;
    return options;
}

static void snapshot(const struct co_job *job, struct zc_client *c)
{
    const struct zc_snapshot s = { .job = job->name, .name = CO_SNAPSHOT };
    struct zc_snapshot_row row;

    if (zc_snapshot_wait(c, &s, &row) < 0)
        fail_msg("snapshot of '%s': %s", job->name, zc_error(c));
}

/* Makes the iterations up to and including `to`. */
static void make_iterations(const struct co_job *job, struct zi_rank *ranks, struct zc_client *c,
                            uint64_t from, uint64_t to)
{
    for (uint64_t k = from; k <= to; k++) {
        co_iterate(job, ranks, job->world, k, co_job_commit(job, k));
        co_see_state(job, ranks, job->world, k);
        co_see_notes(job, ranks, job->world, k);
        if (k == co_job_marks(job).snapshot)
            snapshot(job, c);
    }
}

void co_make(struct zi_daemon *d)
{
    struct zi_rank ranks[CO_WORLD_MAX];
    struct zc_snapshot_row row;
    struct zc_client *c;

    dir_new(d);
    assert_int_equal(mkdir(more(d), 0700), 0);
    for (unsigned life = 0; life < 2; life++) {
        zi_start_again(d, co_options(d, "4096", "auto"));
        c = zi_client(d);
        for (const struct co_job *job = co_jobs; job < co_jobs + CO_JOBS; job++) {
            const struct co_marks m = co_job_marks(job);

            if (job->of)
                continue;
            if (life == 0) {
                co_open(job, ranks, d);
                make_iterations(job, ranks, c, 1, m.first_life);
            } else {
                co_attach(job, ranks, job->world, true, d);
                co_ready(ranks, job->world, NULL);
                /* what is prepared keeps the next step waiting */
                make_iterations(job, ranks, c, m.first_life + 1, m.prepared ? m.prepared : m.last);
            }
            zi_close(ranks, job->world);
        }
        if (life == 0) {
            zc_close(c);
            zi_end(d);
        }
    }
    for (const struct co_job *job = co_jobs; job < co_jobs + CO_JOBS; job++)
        if (job->of && zc_clone_wait(c, job->of->name, CO_SNAPSHOT, job->name, &row) < 0)
            fail_msg("clone of '%s': %s", job->of->name, zc_error(c));
    zc_close(c);
    zi_kill(d);
    co_see_records(d->data, more(d));
}

void co_archive(const struct zi_daemon *d, const char *path)
{
    char command[1024];

    /* preallocated files have no holes, and tar makes none: a copy has them */
    (void)snprintf(
        command, sizeof(command),
        "mkdir %s/sparse && cp -a --sparse=always %s %s %s/sparse && "
        "tar -C %s/sparse --sparse --owner=0 --group=0 --numeric-owner --mtime=2000-01-01 "
        "-cf - data more | gzip -9n >%s",
        d->dir, d->data, more(d), d->dir, d->dir, path);
    shell(command);
}

void co_unpack(struct zi_daemon *d, const char *path)
{
    char command[512];

    dir_new(d);
    (void)snprintf(command, sizeof(command), "tar -C %s --no-same-owner -xzf %s", d->dir, path);
    shell(command);
    co_own(d->data, more(d));
}

void co_fsck(const struct zi_daemon *d)
{
    char command[512];

    (void)snprintf(command, sizeof(command),
                   "%s --fsck --data %s --paths %s >%s/fsck 2>&1 || { cat %s/fsck >&2; false; }",
                   ZSHARDD_PATH, d->data, more(d), d->dir, d->dir);
    shell(command);
}

void co_refused(const struct zi_daemon *d, const void *record, size_t len_bytes, const char *text)
{
    static const struct zn_key store = { .kind = 1 };
    static const char *const runs[] = { "--socket sock", "--fsck" };
    char command[1024];

    co_put(d->data, more(d), &store, record, len_bytes);
    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(
            command, sizeof(command),
            "cd %s && rm -rf was && mkdir was && cp -a --sparse=always data more was && "
            "! timeout 60 %s %s --data %s --paths %s >said 2>&1 && "
            "grep -qF \"%s\" said && for f in data/pages.zsd data/catalog.zsd "
            "more/pages.zsd; do cmp $f was/$f || exit 1; done || { cat said >&2; false; }",
            d->dir, ZSHARDD_PATH, runs[i], d->data, more(d), text);
        shell(command);
    }
}
