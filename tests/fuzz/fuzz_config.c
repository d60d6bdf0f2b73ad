/*
 * fuzz_config.c - any bytes as a DeepSpeed file.
 *
 * The file is refused with an error message, or its result is complete: every key has a line,
 * numbers are within their limits, batches agree, and every step has a learning rate. The number of
 * ranks is derived from the length of the input. Seeds are the files of tests/configs, good and
 * broken.
 */
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/zc_config.h"
#include "tests/fuzz/zfuzz.h"

static void check_lines(const struct zc_zero_config *c)
{
    for (size_t i = 0; i < c->nlines; i++) {
        const struct zc_config_line *l = &c->lines[i];

        zfuzz_require(l->key && l->value && l->text && l->key[0] && l->value[0] && l->text[0]);
    }
}

static void check_numbers(const struct zc_zero_config *c, uint32_t ranks)
{
    const struct zc_zero_options *o = &c->options;
    const double reals[] = { c->lr,   o->beta1,    o->beta2,     o->eps,      o->weight_decay[0],
                             o->clip, o->momentum, o->dampening, o->lr_decay, c->loss_scale.min };

    for (size_t i = 0; i < ZB_COUNT(reals); i++)
        zfuzz_require(isfinite(reals[i]) && reals[i] >= 0);
    zfuzz_require(o->beta1 <= 1 && o->beta2 <= 1 && o->micro_steps >= 1 && c->loss_scale.min > 0);
    zfuzz_require(c->loss_scale.window >= 1 && c->loss_scale.hysteresis >= 1);
    zfuzz_require(o->stage >= ZC_STAGE_DDP && o->stage <= ZC_STAGE_3);
    zfuzz_require(o->offload_param == ZC_ZERO_NONE || o->stage == ZC_STAGE_3);
    zfuzz_require(o->group_ranks == 0 || ranks == 0 || ranks % o->group_ranks == 0);
    if (ranks > 0 && c->train_batch > 0 && c->micro_batch > 0)
        zfuzz_require(c->train_batch == c->micro_batch * o->micro_steps * ranks);
}

static void check_rates(const struct zc_zero_config *c)
{
    static const uint64_t steps[] = { 0, 1, 2, 999, 1000, 1001, UINT32_MAX, UINT64_MAX };

    for (size_t i = 0; i < ZB_COUNT(steps); i++) {
        double rate = zc_lr_at(&c->schedule, c->lr, steps[i]);

        zfuzz_require(isfinite(rate));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint32_t ranks = bytes % 5;
    struct zc_zero_config *c = NULL;
    char path[64], error[256] = "";
    int rc, fd = memfd_create("config", MFD_CLOEXEC);

    zfuzz_require(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    rc = zc_zero_config_load(&c, path, ranks, error, sizeof(error));
    zfuzz_require(close(fd) == 0);
    if (rc != 0) {
        zfuzz_require(rc == -EINVAL && !c && error[0]);
        return 0;
    }
    zfuzz_require(c && !error[0]);
    check_lines(c);
    check_numbers(c, ranks);
    check_rates(c);
    zc_zero_config_free(c);
    return 0;
}

size_t zfuzz_seed(unsigned i, uint8_t *out, size_t room)
{
    static glob_t files; /* kept until the end, because every run draws one */
    FILE *f;
    size_t n;

    if (!files.gl_pathv)
        zfuzz_require(glob(ZSHARD_CONFIGS "/*.json", 0, NULL, &files) == 0 &&
                      glob(ZSHARD_CONFIGS "/broken/*.json", GLOB_APPEND, NULL, &files) == 0);
    if (i >= files.gl_pathc)
        return 0;
    f = fopen(files.gl_pathv[i], "rbe");
    zfuzz_require(f);
    n = fread(out, 1, room, f);
    zfuzz_require(n > 0 && n < room);
    (void)fclose(f);
    return n;
}
