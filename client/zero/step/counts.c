/*
 * counts.c - how many steps each tensor has made.
 *
 * MODEL. A tensor that is left out of a step lags: its own count stays, and the job's grows. The
 * lag of each tensor of all units is stored (that of frozen ones is not used), because it changes
 * only if a tensor is left out:
 *
 *     steps of a tensor = z->applied - lags[tensor]
 *
 * If the trainer has set a tensor's count, it may be ahead of the job. Its lag is then negative,
 * modulo 2 to the 64.
 *
 * All ranks have the same lags. In the job's note (note.c) they are a block of variable-length
 * numbers (LEB128): the number of tensors, then pairs of a run length and the lag of that run,
 * zigzag encoded. There is no block if nothing lags.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "client/zero/step/counts.h"
#include "client/zero/step/step.h"

#define STEPS_MOST (UINT64_C(1) << 53) /* a double represents them exactly */

int zcz_counts_start(struct zc_zero *z)
{
    struct zcz_steps *steps = z->steps;

    steps->ntensors = steps->ntrained = 0;
    for (uint32_t i = 0; i < z->nunits; i++) {
        steps->ntrained += z->units[i].ntrained;
        steps->ntensors += z->units[i].def.ntensors;
    }
    free(steps->lags);
    steps->lags = calloc(zb_max_u64(steps->ntensors, 1), sizeof(*steps->lags));
    return steps->lags ? 0 : zcz_refuse(z, -ENOMEM, "no memory for %u tensors", steps->ntensors);
}

void zcz_counts_close(struct zc_zero *z)
{
    free(z->steps->lags);
}

bool zcz_counts_step(struct zc_zero *z, const uint32_t *class_of)
{
    bool changed = false;
    uint32_t all = 0, trained = 0;

    for (uint32_t i = 0; i < z->nunits && class_of; i++)
        for (uint32_t t = 0; t < z->units[i].def.ntensors; t++, all++)
            if (zcz_tensor_trained(&z->units[i], t) && class_of[trained++] == ZC_CLASS_NONE) {
                z->steps->lags[all]++;
                changed = true;
            }
    z->steps->lagging |= changed;
    return changed;
}

/* ---- the block */

/* Writes if `out` is not NULL. Returns the number of bytes. */
static size_t number_put(uint64_t number, unsigned char *out)
{
    size_t n = 0;

    do {
        if (out)
            out[n] = (unsigned char)((number & 0x7f) | (number > 0x7f ? 0x80 : 0));
        n++;
        number >>= 7;
    } while (number > 0);
    return n;
}

/* Zigzag encoding: a small lag of either sign becomes a small number; and back. */
static uint64_t lag_number(uint64_t lag)
{
    return lag << 1 ^ (lag >> 63 ? UINT64_MAX : 0);
}

static uint64_t number_lag(uint64_t number)
{
    return number >> 1 ^ (number & 1 ? UINT64_MAX : 0);
}

/* Returns the position after the number. NULL: there is none. */
static const unsigned char *number_get(const unsigned char *at, const unsigned char *end,
                                       uint64_t *ret)
{
    uint64_t number = 0;

    for (unsigned shift = 0; at < end && shift < 63; shift += 7) {
        number |= (uint64_t)(*at & 0x7f) << shift;
        if (!(*at++ & 0x80)) {
            *ret = number;
            return at;
        }
    }
    return NULL;
}

/* Packs the lags, including what a step will leave out. */
static size_t lags_pack(const struct zc_zero *z, const uint32_t *class_of, unsigned char *out)
{
    uint32_t all = 0, trained = 0;
    uint64_t run = 0, of = 0;
    size_t n = number_put(z->steps->ntensors, out);

    for (uint32_t i = 0; i < z->nunits; i++)
        for (uint32_t t = 0; t < z->units[i].def.ntensors; t++, all++) {
            bool is = zcz_tensor_trained(&z->units[i], t);
            uint64_t lag = z->steps->lags[all];

            if (is && class_of)
                lag += class_of[trained++] == ZC_CLASS_NONE;
            if (run > 0 && lag != of) {
                n += number_put(run, out ? out + n : NULL);
                n += number_put(lag_number(of), out ? out + n : NULL);
                run = 0;
            }
            of = lag;
            run++;
        }
    n += number_put(run, out ? out + n : NULL);
    return n + number_put(lag_number(of), out ? out + n : NULL);
}

static bool leaves_alone(const struct zc_zero *z, const uint32_t *class_of)
{
    for (uint32_t i = 0; i < z->steps->ntrained && class_of; i++)
        if (class_of[i] == ZC_CLASS_NONE)
            return true;
    return false;
}

size_t zcz_counts_bytes(const struct zc_zero *z, const uint32_t *class_of)
{
    return z->steps->lagging || leaves_alone(z, class_of) ? lags_pack(z, class_of, NULL) : 0;
}

void zcz_counts_pack(const struct zc_zero *z, unsigned char *out)
{
    (void)lags_pack(z, NULL, out);
}

int zcz_counts_unpack(struct zc_zero *z, const unsigned char *block, size_t bytes)
{
    struct zcz_steps *steps = z->steps;
    const unsigned char *at = block, *end = block + bytes;
    uint64_t n = 0, run = 0, lag = 0, done = 0;

    at = number_get(at, end, &n);
    if (at && n != steps->ntensors)
        return zcz_refuse(z, -EINVAL,
                          "the job's note has step counts of %llu tensors, and the units have %u",
                          (unsigned long long)n, steps->ntensors);
    while (at && done < n) {
        at = number_get(at, end, &run);
        at = at ? number_get(at, end, &lag) : NULL;
        lag = number_lag(lag);
        if (!at || run == 0 || run > n - done || z->applied - lag > STEPS_MOST)
            break;
        for (uint64_t i = 0; i < run; i++)
            steps->lags[done++] = lag;
        steps->lagging |= lag != 0;
    }
    if (!at || done < n || at != end)
        return zcz_refuse(z, -EPROTO, "the step counts of tensors in the job's note are malformed");
    return 0;
}

uint64_t zcz_counts_digest(const struct zc_zero *z)
{
    return z->steps->lags
               ? zb_crc32c(0, z->steps->lags, z->steps->ntensors * sizeof(*z->steps->lags))
               : 0;
}

/* The index of a unit's first tensor. */
static uint32_t counts_first(const struct zc_zero *z, uint32_t unit)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i < unit; i++)
        first += z->units[i].def.ntensors;
    return first;
}

int zc_zero_tensor_steps(struct zc_zero *z, uint32_t unit, uint64_t *ret_steps)
{
    ZCZ_GUARD(z);
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);
    const uint64_t *lags = z->steps->lags;

    if (rc < 0)
        return rc;
    lags += counts_first(z, unit);
    for (uint32_t t = 0; t < u->def.ntensors; t++)
        ret_steps[t] = zcz_tensor_trained(u, t) ? z->applied - lags[t] : 0;
    return 0;
}

static int set_check(struct zc_zero *z, const struct zcz_unit *u, const uint64_t *steps, uint32_t n)
{
    if (zcz_announced(z))
        return zcz_refuse(z, -EBUSY, "step counts of unit '%s', and the next step is announced",
                          u->def.name);
    if (n != u->def.ntensors || (n > 0 && !steps))
        return zcz_refuse(z, -EINVAL, "step counts of %u tensors, and unit '%s' has %u", n,
                          u->def.name, u->def.ntensors);
    for (uint32_t t = 0; t < n; t++)
        if (steps[t] >= STEPS_MOST)
            return zcz_refuse(z, -EINVAL, "tensor '%s' of unit '%s' has made %llu steps: too many",
                              u->def.tensors[t].name, u->def.name, (unsigned long long)steps[t]);
    return 0;
}

int zc_zero_set_tensor_steps(struct zc_zero *z, uint32_t unit, const uint64_t *steps, uint32_t n)
{
    ZCZ_GUARD(z);
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);
    uint64_t *lags = z->steps->lags;

    if (rc == 0)
        rc = set_check(z, u, steps, n);
    if (rc == 0)
        rc = zcz_vote(z, 0, zb_crc32c(unit, steps, n * sizeof(*steps)), ZCZ_CALL_COUNTS);
    if (rc < 0)
        return rc;
    lags += counts_first(z, unit);
    for (uint32_t t = 0; t < n; t++) {
        lags[t] = zcz_tensor_trained(u, t) ? z->applied - steps[t] : 0;
        z->steps->lagging |= lags[t] != 0;
    }
    z->steps->counts_set = true;
    return 0;
}
