/*
 * reasons.c - the rules: see reasons.h. A rule is a row of the table at the end.
 */
#include "daemon/show/reasons.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "base/text.h"
#include "base/util.h"

#define SECOND_NS UINT64_C(1000000000)

__attribute__((format(printf, 3, 4))) static void say(struct zsd_reason *r,
                                                      enum zsd_reason_level level, const char *fmt,
                                                      ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(r->text, sizeof(r->text), fmt, ap);
    va_end(ap);
    zb_text_clean(r->text, strlen(r->text)); /* names of files, cut texts */
    r->level = level;
}

struct ago {
    char s[32];
};

/* "5 min ago" */
static struct ago ago(const struct zsd_facts *f, uint64_t then_ns)
{
    uint64_t s = f->now_ns > then_ns ? (f->now_ns - then_ns) / SECOND_NS : 0;
    struct ago a;

    (void)snprintf(a.s, sizeof(a.s), "%llu %s ago",
                   (unsigned long long)(s < 120      ? s
                                        : s < 7200   ? s / 60
                                        : s < 172800 ? s / 3600
                                                     : s / 86400),
                   s < 120      ? "s"
                   : s < 7200   ? "min"
                   : s < 172800 ? "h"
                                : "days");
    return a;
}

static uint64_t percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (uint64_t)((double)part / (double)whole * 100.0) : 0;
}

/* ---- errors */

static void store_poisoned(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->poisoned.code != 0)
        say(r, ZSD_REASON_ERROR, "%s", f->poisoned.text);
}

static void read_only(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->read_only)
        say(r, ZSD_REASON_ERROR, "the daemon was started with --read-only: jobs are refused");
}

static void catalog_full(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->catalog_full.code != 0)
        say(r, ZSD_REASON_ERROR, "the last change was not saved: %s", f->catalog_full.text);
}

static void copies_failed(const struct zsd_facts *f, struct zsd_reason *r)
{
    char more[48] = "";

    if (f->copies_failed == 0)
        return;
    if (f->copies_failed > 1)
        (void)snprintf(more, sizeof(more), ", nor on %u other drives", f->copies_failed - 1);
    say(r, ZSD_REASON_ERROR, "there is no copy of the catalog in '%s'%s: %s", f->copy_path, more,
        f->copy_why.text);
}

static void gpu_failed(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->gpu_failed.code != 0 && f->gpus <= 1)
        say(r, ZSD_REASON_ERROR, "the GPU has failed: %s", f->gpu_failed.text);
    else if (f->gpu_failed.code != 0)
        say(r, ZSD_REASON_ERROR, "%u of %u GPUs failed: %s", f->gpus_failed, f->gpus,
            f->gpu_failed.text);
}

/* The newest failure is named, the others are counted. */
static void drive_errors(const struct zsd_facts *f, struct zsd_reason *r)
{
    const struct zsd_drive_facts *last = NULL;
    uint64_t all = 0;

    for (unsigned i = 0; i < f->ndrives; i++) {
        const struct zsd_drive_facts *d = &f->drives[i];

        all += d->failed;
        if (d->failed > 0 && (!last || d->failed_ns > last->failed_ns))
            last = d;
    }
    if (!last)
        return;
    say(r, f->now_ns - last->failed_ns < ZSD_DRIVE_ERROR_NS ? ZSD_REASON_ERROR : ZSD_REASON_ADVICE,
        "%llu transfers have failed since the start, the last one %s in '%s': %s",
        (unsigned long long)all, ago(f, last->failed_ns).s, last->path, strerror(-last->failed_rc));
}

/* The first one that no administrator has drained, else the first one. */
static void drive_drained(const struct zsd_facts *f, struct zsd_reason *r)
{
    const struct zsd_drive_facts *first = NULL;

    for (unsigned i = 0; i < f->ndrives; i++)
        if (f->drives[i].drained && (!first || (first->asked && !f->drives[i].asked)))
            first = &f->drives[i];
    if (!first)
        return;
    say(r, first->asked ? ZSD_REASON_ADVICE : ZSD_REASON_ERROR,
        "'%s' is %s%s%s%s; %s are left there", first->path, first->state,
        *first->drained_why ? " (" : "", first->drained_why, *first->drained_why ? ")" : "",
        zb_size_text(first->held_bytes).s);
}

static void drive_stalled(const struct zsd_facts *f, struct zsd_reason *r)
{
    for (unsigned i = 0; i < f->ndrives && r->level == ZSD_REASON_NONE; i++)
        if (f->drives[i].waits_ns >= ZSD_DRIVE_STALL_NS)
            say(r, ZSD_REASON_ERROR, "no transfer has ended in '%s' for %llu s", f->drives[i].path,
                (unsigned long long)(f->drives[i].waits_ns / UINT64_C(1000000000)));
}

static void pages_bad(const struct zsd_facts *f, struct zsd_reason *r)
{
    bool scrubbed = f->scrub_ended_ns > 0;

    if (f->scrub_now_bad > 0)
        say(r, ZSD_REASON_ERROR, "the scrub has found %llu bad pages",
            (unsigned long long)f->scrub_now_bad);
    else if (scrubbed && f->scrub_bad > 0)
        say(r, ZSD_REASON_ERROR, "the scrub that ended %s found %llu bad pages",
            ago(f, f->scrub_ended_ns).s, (unsigned long long)f->scrub_bad);
    else if (f->corrupt > 0 && (!scrubbed || f->corrupt_ns >= f->scrub_began_ns))
        say(r, ZSD_REASON_ERROR,
            "%llu pages were corrupt when they were read, the last one %s; no scrub since then "
            "found all pages good",
            (unsigned long long)f->corrupt, ago(f, f->corrupt_ns).s);
}

static void commits_failing(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->jobs_failing == 0)
        return;
    if (f->failing_job[0] == '\0')
        say(r, ZSD_REASON_ERROR, "the last commit failed, of %u jobs of other users",
            f->jobs_failing);
    else if (f->jobs_failing == 1)
        say(r, ZSD_REASON_ERROR, "the last commit of job '%s' failed: %s", f->failing_job,
            f->failing_why);
    else
        say(r, ZSD_REASON_ERROR, "the last commit failed, of job '%s' (%s) and of %u others",
            f->failing_job, f->failing_why, f->jobs_failing - 1);
}

/* ---- space and limits */

static void filesystem_low(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->filesystem_known && f->filesystem_left < ZSD_FILESYSTEM_ADVICE)
        say(r, f->filesystem_left < ZSD_FILESYSTEM_ERROR ? ZSD_REASON_ERROR : ZSD_REASON_ADVICE,
            "the file system of the data directory has %s left, and the catalog grows there",
            zb_size_text(f->filesystem_left).s);
}

static void descriptors_low(const struct zsd_facts *f, struct zsd_reason *r)
{
    uint64_t used = percent(f->files, f->files_max);

    if (used >= ZSD_FILES_ADVICE_PERCENT)
        say(r, used >= ZSD_FILES_ERROR_PERCENT ? ZSD_REASON_ERROR : ZSD_REASON_ADVICE,
            "%llu of %llu descriptors are open", (unsigned long long)f->files,
            (unsigned long long)f->files_max);
    else if (f->files_max > 0 && f->files_max < f->files_wanted)
        say(r, ZSD_REASON_ADVICE, "the limit of descriptors is %llu: clients_max=%u may need %llu",
            (unsigned long long)f->files_max, f->clients_max, (unsigned long long)f->files_wanted);
}

static void nvme_low(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->nvme_bytes > 0 && percent(f->nvme_used, f->nvme_bytes) >= ZSD_NVME_FULL_PERCENT)
        say(r, ZSD_REASON_ADVICE, "%s of the NVMe tier's %s are taken or promised",
            zb_size_text(f->nvme_used).s, zb_size_text(f->nvme_bytes).s);
}

static void memory_low(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->host_bytes > 0 && f->host_left < ZSD_HOST_LEAST)
        say(r, ZSD_REASON_ADVICE, "the daemon can take only %s more memory of the machine's %s",
            zb_size_text(f->host_left).s, zb_size_text(f->host_bytes).s);
}

static void clients_full(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->clients_max > 0 && percent(f->clients, f->clients_max) >= ZSD_CLIENTS_FULL_PERCENT)
        say(r, ZSD_REASON_ADVICE, "%u of %u clients are connected", f->clients, f->clients_max);
}

static void log_dropped(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->lines_dropped > 0)
        say(r, ZSD_REASON_ADVICE,
            "%llu log lines about clients were left out since the start, because there were too "
            "many",
            (unsigned long long)f->lines_dropped);
}

/* ---- how it was started */

/* The first drive with a reason: `why` is the offset of the message in its facts. */
static void drive_why(const struct zsd_facts *f, struct zsd_reason *r, size_t why, const char *what)
{
    for (unsigned i = 0; i < f->ndrives && r->level == ZSD_REASON_NONE; i++) {
        const char *text = (const char *)&f->drives[i] + why;

        if (*text != '\0')
            say(r, ZSD_REASON_ADVICE, "%s in '%s': %s", what, f->drives[i].path, text);
    }
}

static void io_slower(const struct zsd_facts *f, struct zsd_reason *r)
{
    drive_why(f, r, offsetof(struct zsd_drive_facts, why), "I/O is not the fastest");
}

static void io_buffered(const struct zsd_facts *f, struct zsd_reason *r)
{
    drive_why(f, r, offsetof(struct zsd_drive_facts, why_buffered), "I/O is buffered");
}

static void io_unregistered(const struct zsd_facts *f, struct zsd_reason *r)
{
    drive_why(f, r, offsetof(struct zsd_drive_facts, why_unregistered),
              "memory is not registered for I/O");
}

static void io_fixed(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->fixed)
        say(r, ZSD_REASON_ADVICE, "the NVMe tier is memory (io = fixed): nothing survives");
}

static void drive_left_out(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->without > 0)
        say(r, ZSD_REASON_ADVICE,
            "data file number %u was left out at the start (--without): jobs with pages there are "
            "lost",
            (unsigned)f->without);
}

static void gpu_unpinned(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->gpu_unpinned.code != 0)
        say(r, ZSD_REASON_ADVICE, "some memory is not pinned, and copies to the GPU are slower: %s",
            f->gpu_unpinned.text);
}

static void ending(const struct zsd_facts *f, struct zsd_reason *r)
{
    if (f->ending)
        say(r, ZSD_REASON_ADVICE, "the daemon is stopping: it accepts no jobs and steps");
}

/* ---- the table */

static const struct rule {
    const char *id;
    void (*find)(const struct zsd_facts *f, struct zsd_reason *r);
    const char *fix;
} rules[] = {
    { "store-poisoned", store_poisoned,
      "check the drive (dmesg, smartctl) and its file system, then restart the daemon: jobs "
      "continue from their last commit; if it cannot be written, start with --read-only to "
      "export" },
    { "read-only", read_only,
      "export what matters, mend the drives, and start the daemon without --read-only" },
    { "catalog-full", catalog_full,
      "free space on the file system of the data directory, or raise the quota of the daemon's "
      "user; commits then continue without a restart" },
    { "catalog-copy-failed", copies_failed,
      "if there is no space, free some: a later commit makes the copy again; otherwise check the "
      "drive, and restart the daemon" },
    { "gpu-failed", gpu_failed,
      "check the GPU (dmesg, nvidia-smi -q), then restart the daemon; until then it uses host "
      "memory and NVMe only" },
    { "drive-errors", drive_errors,
      "check the drive (dmesg, smartctl); export what can be read before it is replaced" },
    { "drive-stalled", drive_stalled,
      "check the drive (dmesg, smartctl); jobs with pages there wait for it" },
    { "drive-drained", drive_drained,
      "check the drive (dmesg, smartctl), and replace it, or 'zctl drive use N'; 'zctl drive' "
      "shows "
      "what is left there" },
    { "pages-bad", pages_bad,
      "'zctl scrub' and the log name the pages; destroy or roll back what has them, check the "
      "drive, and run 'zctl scrub start' again" },
    { "commits-failing", commits_failing,
      "until a commit succeeds, the job resumes from an older step; the reason says what it "
      "lacks" },
    { "filesystem-low", filesystem_low, "free space on the file system of the data directory" },
    { "descriptors-low", descriptors_low,
      "raise LimitNOFILE of the unit, or lower clients_max, and restart the daemon" },
    { "nvme-low", nvme_low,
      "'zctl df' shows what uses it: destroy snapshots or jobs, or add a drive (paths)" },
    { "memory-low", memory_low, "lower the host tier ('zctl tier set host SIZE'), or stop others" },
    { "clients-full", clients_full, "end clients that are idle, or raise clients_max" },
    { "log-lines-dropped", log_dropped,
      "the log names the clients: 'client-dropped', 'oneway-malformed', 'release-refused'" },
    { "io-slower", io_slower, "allow io_uring to the daemon (kernel, container, unit)" },
    { "io-buffered", io_buffered, "put the data directory on a file system with O_DIRECT" },
    { "io-unregistered", io_unregistered, "raise LimitMEMLOCK of the unit" },
    { "io-fixed", io_fixed, "use io = auto for anything but benchmarks" },
    { "drive-left-out", drive_left_out,
      "the log names them ('job-lost'): export the others, destroy those, and restart the daemon "
      "without that option" },
    { "gpu-unpinned", gpu_unpinned, "raise LimitMEMLOCK of the unit" },
    { "ending", ending, "wait for its end, or send the signal again" },
};
_Static_assert(ZB_COUNT(rules) == ZSD_REASONS, "ZSD_REASONS is the number of rules");

unsigned zsd_reasons_find(const struct zsd_facts *facts, struct zsd_reason ret[ZSD_REASONS])
{
    unsigned errors = 0;

    for (unsigned i = 0; i < ZSD_REASONS; i++) {
        ret[i] = (struct zsd_reason){ .id = rules[i].id, .fix = rules[i].fix };
        rules[i].find(facts, &ret[i]);
        errors += ret[i].level == ZSD_REASON_ERROR;
    }
    return errors;
}
