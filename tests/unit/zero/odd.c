#include "odd.h"

#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/core/zero.h"

#define TRY(call)            \
    do {                     \
        int try_rc = (call); \
        if (try_rc != 0)     \
            return try_rc;   \
    } while (0)

/* Small enough for bf16, and so far apart that no step changes one into another. */
static const struct {
    const char *name;
    uint64_t elems;
} units[ODD_UNITS] = {
    { "fc1", 9000 }, { "fc2", 9000 }, { "fc3", 9000 }, { "fc4", 9000 }, { "out", 30001 },
};

static int init(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    (void)first;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(16 * unit + 16);
    return 0;
}

static bool odd_now(const struct odd *o, uint64_t step, enum odd_call call)
{
    return o->call == call && o->step == step && o->options.comm->rank == o->rank;
}

static float first_of(const struct odd *o, const void *params)
{
    float f;
    uint32_t bits;

    if (o->dtype == ZC_F32)
        return *(const float *)params;
    bits = (uint32_t) * (const uint16_t *)params << 16;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static int look(struct odd *o, struct zc_zero *z, uint32_t unit)
{
    float is, ought = (float)(16 * unit + 16);
    const void *params;

    TRY(zc_zero_gather(z, unit, &params));
    if (!o->options.device) {
        is = first_of(o, params);
        o->wrong = o->wrong || is < ought - 8 || is > ought + 8;
    }
    return zc_zero_release(z, unit);
}

static int forward(struct odd *o, struct zc_zero *z, uint64_t step)
{
    uint32_t order[ODD_UNITS] = { 0, 1, 2, 3, 4 };

    if (odd_now(o, step, ODD_GATHERS)) {
        order[0] = 1;
        order[1] = 0;
    }
    if (odd_now(o, step, ODD_LENGTH)) {
        order[1] = 4;
        order[4] = 1;
    }
    for (uint32_t i = 0; i < ODD_UNITS; i++)
        if (i != 1 || !odd_now(o, step, ODD_LEFT_OUT))
            TRY(look(o, z, order[i]));
    return 0;
}

static int backward(struct odd *o, struct zc_zero *z, uint64_t step)
{
    uint32_t order[ODD_UNITS] = { 4, 3, 2, 1, 0 };

    if (odd_now(o, step, ODD_REDUCES)) {
        order[3] = 0;
        order[4] = 1;
    }
    for (uint32_t i = 0; i < ODD_UNITS; i++)
        TRY(look(o, z, 4 - i));
    for (uint32_t i = 0; i < ODD_UNITS; i++) {
        uint32_t u = order[i];
        float *grad;

        TRY(zc_zero_grad(z, u, &grad));
        for (uint64_t k = 0; k < units[u].elems && !o->options.device; k++)
            grad[k] += 1e-3f * (float)(u + 1);
        TRY(zc_zero_reduce(z, u));
    }
    return 0;
}

static int reads(struct odd *o, struct zc_zero *z, uint64_t step)
{
    float out[4];

    return zc_zero_read(z, odd_now(o, step, ODD_READ) ? 1 : 0, ZC_PARAM,
                        odd_now(o, step, ODD_READ_RANGE) ? 8996 : 0, 4, out);
}

static int sums(struct odd *o, struct zc_zero *z, uint64_t step)
{
    double values[2] = { 1, 2 };

    TRY(zc_zero_sum(z, values, odd_now(o, step, ODD_SUM) ? 2 : 1));
    return odd_now(o, step, ODD_SUM_TWICE) ? zc_zero_sum(z, values, 1) : 0;
}

static int train(struct odd *o, struct zc_zero **ret)
{
    struct zc_zero_stepped stepped;

    TRY(zc_zero_open(ret, &o->options));
    for (uint32_t u = 0; u < ODD_UNITS; u++) {
        const struct zc_tensor tensor = { .name = "w", .ndims = 1, .dims = { units[u].elems } };
        const struct zc_unit unit = { .index = u,
                                      .name = units[u].name,
                                      .elems = units[u].elems,
                                      .dtype = o->dtype,
                                      .tensors = &tensor,
                                      .ntensors = 1 };

        TRY(zc_zero_add_unit(*ret, &unit));
    }
    TRY(zc_zero_start(*ret, init, NULL));
    for (uint64_t step = 1; step <= ODD_STEPS; step++) {
        uint32_t micros = o->options.vertical ? 1 : o->options.micro_steps;

        o->failed_in = step;
        for (uint32_t micro = 0; micro < micros; micro++) {
            TRY(forward(o, *ret, micro == 0 ? step : 0));
            TRY(backward(o, *ret, micro == 0 ? step : 0));
        }
        if (!o->no_sums) {
            TRY(reads(o, *ret, step));
            TRY(sums(o, *ret, step));
        }
        TRY(zc_zero_step(*ret, 1e-3, &stepped));
        o->applied = stepped.applied;
    }
    return 0;
}

void odd_train(struct odd *o)
{
    struct zc_zero *z = NULL;

    o->rc = train(o, &z);
    o->ended_s = (double)zb_now_ns() * 1e-9;
    (void)snprintf(o->error, sizeof(o->error), "%s", zc_zero_error(z));
    zc_zero_close(z, o->rc == 0);
}
