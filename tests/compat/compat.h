/*
 * compat.h - a store that an older release wrote, and what that release says of it.
 *
 * MODEL. A release's folder has two files: store.tar.gz, the data directories of a daemon that was
 * killed, and expected.txt, what that release found there. A run with `make` writes both, with the
 * programs of that release; every other run reads both, with the programs of today.
 *
 * The bits of a job follow from its table (jobs.c): initial values and gradients are functions of
 * the element, and the step. So the table is a part of the format: what has been recorded stays
 * true only as long as nothing there changes.
 */
#ifndef COMPAT_H
#define COMPAT_H

#include "tests/integ/zinteg.h"

struct zn_key;

#define CO_UID       0u /* that the jobs of a store belong to */
#define CO_WORLD_MAX 3u
#define CO_SNAPSHOT  "old" /* the name of every job's snapshot */

/* ---- what is expected (expect.c) */

/** Reads the lines that everything seen must match. */
void co_expect_load(const char *path);
/** Nothing is known: what is seen for the first time is noted, and must be the same later on. */
void co_expect_record(void);
/** Compares a value with that of its key. */
void co_see(const char *value, const char *key, ...) __attribute__((format(printf, 2, 3)));
void co_see_bytes(const void *bytes, size_t len, const char *key, ...)
    __attribute__((format(printf, 3, 4)));
/** Fails for lines that were never seen. */
void co_expect_all_seen(void);
void co_expect_write(const char *path);
void co_expect_free(void);

/* ---- the jobs (jobs.c) */

/*
 * What a job does, a letter for each iteration:
 *
 *     s  a step                             k  is skipped, and commits
 *     c  a step that commits                x  is skipped
 *     S  the same; then a snapshot of it    p  a step that is prepared, and stays so
 *
 * and | between two of them: the daemon ends in order, which commits, and starts again. After the
 * last letter it is killed: iterations after the last commit are lost, and the test makes them
 * again.
 */
struct co_job {
    const char *name;
    const struct co_job *of; /* whose snapshot it is a clone of, and which has the same bits */
    enum zc_optimizer optimizer;
    enum zc_moments moments;
    uint32_t world;
    uint64_t commit_every;           /* in the records of 66a9a3a; nobody reads it since */
    enum zc_place offload_optimizer; /* ZC_HOST: its state is never streamed */
    bool streamed;                   /* host memory has no room for the state */
    const struct zc_unit *units;
    unsigned nunits;
    const char *plan;
};

#define CO_JOBS   7u
#define CO_GROUPS 2u

extern const struct co_job co_jobs[CO_JOBS];
extern const struct zc_group co_groups[CO_GROUPS];

/** Iterations: before the `|`, of the commit that is left, of what is prepared beside it and of the
 * snapshot (0: none), and of the whole plan. */
struct co_marks {
    uint64_t first_life, committed, prepared, snapshot, last;
};
struct co_marks co_job_marks(const struct co_job *job);
enum zc_commit co_job_commit(const struct co_job *job, uint64_t iteration);
bool co_job_skips(const struct co_job *job, uint64_t iteration);
/** The job that says what the bits are: itself, or what it is a clone of. */
const struct co_job *co_origin(const struct co_job *job);

/** What co_initial() and co_gradient() give the elements of. */
void co_values_are(const struct co_job *job, unsigned unit, uint64_t step);
float co_initial(uint64_t element);
float co_gradient(uint64_t element);

/* ---- what is done with them, and what is seen of them (run.c) */

/** Opens the job and writes its initial values. */
void co_open(const struct co_job *job, struct zi_rank *ranks, const struct zi_daemon *d);
/** Attaches as so many ranks and defines the units. */
void co_attach(const struct co_job *job, struct zi_rank *ranks, uint32_t world, bool takeover,
               const struct zi_daemon *d);
/** Says where to go on; NULL: at the newest state in memory, else the commit. */
void co_ready(struct zi_rank *ranks, uint32_t world, const uint64_t *at);
/** Puts notes, pushes gradients, steps or skips. */
void co_iterate(const struct co_job *job, struct zi_rank *ranks, uint32_t world, uint64_t iteration,
                enum zc_commit commit);

void co_see_applied(const struct co_job *job, uint64_t iteration, uint64_t applied);
/** Every plane of every unit. */
void co_see_state(const struct co_job *job, struct zi_rank *ranks, uint32_t world,
                  uint64_t iteration);
/** What is kept of a quantized unit. */
void co_see_codes(const struct co_job *job, struct zi_rank *r, unsigned unit);
/** The job's note, and those of ranks if they are as many as wrote them. */
void co_see_notes(const struct co_job *job, struct zi_rank *ranks, uint32_t world,
                  uint64_t iteration);
/** Manifests and planes of a snapshot, or (NULL) the commit, by a reader. */
void co_see_saved(const struct co_job *job, struct zc_client *c, const char *snapshot,
                  uint64_t iteration);

/* ---- the store (store.c, catalog.c) */

/** Options of a daemon in d's directory: a static array, good until the next call. */
const char *const *co_options(const struct zi_daemon *d, const char *page_elems, const char *io);
/** Runs all plans in a new directory, then kills the daemon. */
void co_make(struct zi_daemon *d);
void co_archive(const struct zi_daemon *d, const char *path);
/** Unpacks the archive into a new directory, as a store of whoever runs the test. */
void co_unpack(struct zi_daemon *d, const char *path);
/** Gives the jobs of these data directories to whoever runs the test. */
void co_own(const char *data, const char *more);
/** Writes a record as a later release might; no daemon has the catalog. */
void co_put(const char *data, const char *more, const struct zn_key *key, const void *bytes,
            size_t len_bytes);
/** Start and --fsck refuse the store with this text, and change no byte of it. record: the bytes of
 * the store's record, which is written first. */
void co_refused(const struct zi_daemon *d, const void *record, size_t len_bytes, const char *text);
/** Sees the records of the catalog; no daemon has it. */
void co_see_records(const char *data, const char *more);
/** zshardd --fsck must find nothing. */
void co_fsck(const struct zi_daemon *d);

#endif
