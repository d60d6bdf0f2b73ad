/*
 * jobs.c - the jobs of a store, and what they do. Nothing here may change as long as a store made
 * from it is tested: see README.md.
 */
#include "tests/compat/compat.h"

#define BLOCK 4096u

/* ---- the table */

static const struct zc_tensor embed[] = { { "embed.weight", 0, 2, { 320, 64 }, 0, false },
                                          { "embed.bias", 20480, 1, { 90 }, 1, false } };
static const struct zc_tensor norm[] = { { "norm.weight", 0, 1, { 100 }, 1, false } };
static const struct zc_tensor table[] = { { "table", 0, 1, { 8192 }, ZC_GROUP_FROZEN, false } };
static const struct zc_unit fp32_units[] = {
    { 0, "embed", 5 * BLOCK + 100, ZC_F32, ZC_F32, false, false, embed, 2 },
    { 1, "norm", 100, ZC_F32, ZC_F32, false, false, norm, 1 },
    { 2, "table", 2 * BLOCK, ZC_F32, ZC_F32, true, false, table, 1 },
};

static const struct zc_tensor block0[] = { { "0.weight", 0, 1, { 24576 }, 0, false },
                                           { "0.scale", 24576, 0, { 0 }, 1, false } };
static const struct zc_tensor block1[] = { { "1.weight", 0, 3, { 3, 64, 64 }, 0, false } };
static const struct zc_tensor head[] = { { "head.weight", 5, 1, { 8180 }, 1, false } };
static const struct zc_unit bf16_units[] = {
    { 0, "block.0", 6 * BLOCK + 1, ZC_BF16, ZC_F32, false, false, block0, 2 },
    { 1, "block.1", 3 * BLOCK, ZC_BF16, ZC_BF16, false, false, block1, 1 },
    { 2, "head", 2 * BLOCK - 7, ZC_F16, ZC_F16, false, false, head, 1 },
};

static const struct zc_tensor body[] = { { "body.weight", 0, 1, { 12288 }, 0, false } };
static const struct zc_tensor base[] = {
    { "base.weight", 0, 1, { 16391 }, ZC_GROUP_FROZEN, false }
};
static const struct zc_tensor tail[] = { { "tail.weight", 0, 1, { 4096 }, 1, false } };
static const struct zc_unit q8_units[] = {
    { 0, "body", 3 * BLOCK, ZC_BF16, ZC_F32, false, false, body, 1 },
    { 1, "base", 4 * BLOCK + 7, ZC_BF16, ZC_F32, true, true, base, 1 },
    { 2, "tail", BLOCK, ZC_F32, ZC_F32, false, false, tail, 1 },
};

static const struct zc_tensor wide[] = { { "wide.weight", 0, 1, { 16389 }, 0, false } };
static const struct zc_tensor thin[] = { { "thin.weight", 0, 1, { 8192 }, 1, false } };
static const struct zc_unit plain_units[] = {
    { 0, "wide", 4 * BLOCK + 5, ZC_BF16, ZC_F32, false, false, wide, 1 },
    { 1, "thin", 2 * BLOCK, ZC_F32, ZC_F32, false, false, thin, 1 },
};

/* What comes after the last commit of a plan is lost when the daemon is killed, and made again. */
const struct co_job co_jobs[CO_JOBS] = {
    { "fp32", NULL, ZC_ADAMW, ZC_MOMENTS_F32, 1, 2, ZC_NVME, false, fp32_units, 3, "sSs|csss" },
    { "bf16", NULL, ZC_ADAMW, ZC_MOMENTS_F32, 2, 4, ZC_NVME, true, bf16_units, 3, "sck|Scsxs" },
    { "q8", NULL, ZC_ADAM, ZC_MOMENTS_Q8, 1, 0, ZC_NVME, true, q8_units, 3, "cs|csss" },
    { "lion", NULL, ZC_LION, ZC_MOMENTS_BF16, 3, 0, ZC_NVME, false, plain_units, 2, "s|csss" },
    { "sgd", NULL, ZC_SGD, ZC_MOMENTS_F32, 2, 0, ZC_NVME, true, plain_units, 2, "s|cpsss" },
    { "adagrad", NULL, ZC_ADAGRAD, ZC_MOMENTS_F32, 1, 1, ZC_HOST, false, plain_units, 2,
      "Sc|kcsss" },
    { "copy", &co_jobs[0], ZC_ADAMW, ZC_MOMENTS_F32, 1, 2, ZC_NVME, false, fp32_units, 3, "" },
};

const struct zc_group co_groups[CO_GROUPS] = { { .lr = 0.1,
                                                 .beta1 = 0.9,
                                                 .beta2 = 0.99,
                                                 .eps = 1e-8,
                                                 .weight_decay = 0.01,
                                                 .momentum = 0.5,
                                                 .lr_decay = 0.1 },
                                               { .lr = 0.02,
                                                 .beta1 = 0.8,
                                                 .beta2 = 0.95,
                                                 .eps = 1e-6,
                                                 .weight_decay = 0.1,
                                                 .momentum = 0.9,
                                                 .lr_decay = 0.01,
                                                 .nesterov = true } };

const struct co_job *co_origin(const struct co_job *job)
{
    return job->of ? job->of : job;
}

static char letter_of(const struct co_job *job, uint64_t iteration)
{
    for (const char *p = co_origin(job)->plan; *p; p++)
        if (*p != '|' && --iteration == 0)
            return *p;
    fail_msg("the plan of '%s' is too short", job->name);
    return '\0';
}

struct co_marks co_job_marks(const struct co_job *job)
{
    struct co_marks m = { 0 };

    for (const char *p = co_origin(job)->plan; *p; p++) {
        m.last += *p != '|';
        if (*p == '|')
            m.first_life = m.last;
        if (*p == '|' || strchr("ckS", *p)) /* whoever ends a daemon in order commits */
            m.committed = m.last;
        if (*p == 'S')
            m.snapshot = m.last;
        if (*p == 'p')
            m.prepared = m.last;
    }
    if (job->of) {
        m.committed = m.snapshot;
        m.snapshot = m.prepared = 0;
    }
    return m;
}

enum zc_commit co_job_commit(const struct co_job *job, uint64_t iteration)
{
    const char letter = letter_of(job, iteration);

    if (letter == 'p')
        return ZC_COMMIT_PREPARE;
    return strchr("ckS", letter) ? ZC_COMMIT_STEP : ZC_COMMIT_NO;
}

bool co_job_skips(const struct co_job *job, uint64_t iteration)
{
    return strchr("kx", letter_of(job, iteration)) != NULL;
}

/* ---- values: exact in every dtype's arithmetic of the reference, another one in each block */

static struct {
    unsigned unit, step, seed;
} values;

static uint64_t place_of(uint64_t element)
{
    return element % 61 * 3 + element / BLOCK * 7 + values.unit * 5 + values.seed;
}

float co_initial(uint64_t element)
{
    return (float)(place_of(element) % 97) / 16 - 3;
}

float co_gradient(uint64_t element)
{
    return (float)((place_of(element) + (uint64_t)13 * values.step) % 23) / 8 - 1;
}

void co_values_are(const struct co_job *job, unsigned unit, uint64_t step)
{
    values.unit = unit;
    values.step = (unsigned)step;
    values.seed = (unsigned char)co_origin(job)->name[0];
}
