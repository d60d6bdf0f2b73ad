/*
 * Gradients on NVMe, on a device that fails once, at any of its operations and in every way: a push
 * or step that needed the operation ends with its code, and wrong bytes are never taken for data.
 *
 * MODEL. A job of one rank has so little memory that no page of a gradient is resident. A case
 * makes one step of two micro-steps while one operation of the device fails. The second micro-step
 * adds nothing, so the result is the oracle's step of the first. A push that fails has lost its
 * shard's gradient: the step is refused until that was pushed again, from the first micro-step on.
 * A step that fails ends the job. After a successful step, everything that can be read must be the
 * oracle's result, byte for byte.
 */
#include "tests/sim/zsim.h"

#include <errno.h>
#include <string.h>

#define SPILLED   (156u << 10) /* host memory in addition to the staging */
#define PAGE      4096u
#define SEED      5u
#define OPS_MAX   4096u /* a step takes fewer */
#define ELEMS_MAX 65536u

static const enum zn_fault kinds[] = { ZN_FAULT_EIO,  ZN_FAULT_SHORT,    ZN_FAULT_ENOSPC,
                                       ZN_FAULT_LOST, ZN_FAULT_MISPLACE, ZN_FAULT_FLIP };

static struct {
    uint64_t cases, pushes_io, pushes_bad, steps, read_bad, whole;
} count;

struct spill {
    struct zs_world w;
    struct zn_sim *sim;
};

static void spill_open(struct spill *s)
{
    struct zn_sim_options o = { .seed = SEED };
    struct zs_open open = { .job = "s", .world = 1, .host_bytes = SPILLED };
    struct zb_err err = { 0 };
    struct client *x = &s->w.core.clients[0];
    const struct zsd_job *job;

    assert_int_equal(zn_sim_new(&s->sim, &o, NULL), 0);
    assert_int_equal(zs_start(&s->w, s->sim, SEED, PAGE, &err), 0);
    if (zs_open(&s->w, &open) < 0)
        zs_fail("open: %s", answers[0].text);
    job = x->conn.member->job;
    assert_true(job->grads_nvme_bytes > 0);
    assert_int_equal(job->host_held.used[ZSD_USE_GRAD], 0);
    for (unsigned u = 0; u < ZS_UNITS; u++) {
        Zp__Write q = ZP__WRITE__INIT;

        for (uint64_t i = 0; i < x->count[u]; i++)
            ((float *)(void *)x->staging)[i] = zs_initial(u, x->first[u] + i);
        q.shard = x->shards[u];
        q.count = x->count[u];
        assert_int_equal(call(&s->w.core, 0, zsd_write, &q), 0);
    }
}

static void spill_close(struct spill *s)
{
    zs_stop(&s->w);
    zn_sim_free(s->sim);
}

static int push(struct spill *s, unsigned u, uint32_t micro)
{
    struct client *x = &s->w.core.clients[0];
    Zp__Push q = ZP__PUSH__INIT;

    zs_gradient(1, u, x->first[u], x->count[u], x->staging);
    if (micro > 0)
        memset(x->staging, 0, x->count[u] * sizeof(float));
    q.shard = x->shards[u];
    q.step = 1;
    q.micro = micro;
    q.mode = micro > 0 ? 2 : 1;
    q.dtype = zs_units[u].grad_dtype;
    q.count = x->count[u];
    return call(&s->w.core, 0, zsd_push, &q);
}

static int push_all(struct spill *s, unsigned u)
{
    int rc = push(s, u, 0);

    return rc < 0 || zs_units[u].grad_dtype != ZB_F32 ? rc : push(s, u, 1);
}

static int step(struct spill *s)
{
    Zp__GroupScalars groups[2], *list[2] = { &groups[0], &groups[1] };
    Zp__Step q = ZP__STEP__INIT;

    for (unsigned g = 0; g < 2; g++) {
        zp__group_scalars__init(&groups[g]);
        groups[g].lr = zs_groups[g].lr;
        groups[g].beta1 = zs_groups[g].beta1;
        groups[g].beta2 = zs_groups[g].beta2;
        groups[g].eps = zs_groups[g].eps;
        groups[g].weight_decay = zs_groups[g].weight_decay;
    }
    q.job = s->w.core.clients[0].job;
    q.step = 1;
    q.scale = 1;
    q.n_groups = 2;
    q.groups = list;
    return call(&s->w.core, 0, zsd_step, &q);
}

/* Pushes the gradients of all units. A unit whose push failed is pushed again. */
static void gradients(struct spill *s)
{
    for (unsigned u = 0; u < ZS_UNITS; u++) {
        int rc;

        if (s->w.core.clients[0].shards[u] == 0 || zs_units[u].frozen)
            continue;
        rc = push_all(s, u);
        if (rc == 0)
            continue;
        if (rc != -EIO && rc != -ENOSPC && rc != -EBADMSG)
            zs_fail("a push fails with %d: %s", rc, answers[0].text);
        *(rc == -EBADMSG ? &count.pushes_bad : &count.pushes_io) += 1;
        if (step(s) != -EBUSY)
            zs_fail("a step without the gradient of '%s': %d", zs_units[u].name, answers[0].rc);
        if (push(s, u, 1) != -EINVAL)
            zs_fail("what was lost is added to: %d", answers[0].rc);
        if (push_all(s, u) < 0)
            zs_fail("pushed again: %s", answers[0].text);
    }
}

/* Returns how many operations of the device the case took. */
static uint64_t spill_case(enum zn_fault kind, uint64_t op, bool fault)
{
    static struct spill s;
    struct zs_state *before, *after;
    uint64_t begin, took;
    int rc;

    s = (struct spill){ 0 };
    zs_context("fault %s at operation %llu", fault ? zn_fault_name(kind) : "none",
               (unsigned long long)op);
    spill_open(&s);
    before = zs_state_first();
    after = zs_state_next(before, 1);
    begin = zn_sim_ops(s.sim);
    if (fault)
        assert_int_equal(zn_sim_fault(s.sim, kind, begin + op, false), 0);
    gradients(&s);
    rc = step(&s);
    zs_settle(&s.w);
    took = zn_sim_ops(s.sim) - begin;
    zn_sim_faults_clear(s.sim);
    if (rc < 0 && rc != -EIO && rc != -ENOSPC && rc != -EBADMSG)
        zs_fail("a step fails with %d: %s", rc, answers[0].text);
    count.steps += rc < 0;
    if (rc == 0) { /* it may find a page of state that was not written */
        int read_rc = zs_read_all(&s.w, 1, after);

        count.read_bad += read_rc < 0;
        count.whole += read_rc == 0;
        if (!fault)
            assert_int_equal(read_rc, 0);
    }
    assert_true(fault || rc == 0);
    count.cases++;
    zs_state_unref(before);
    zs_state_unref(after);
    spill_close(&s);
    return took;
}

static void each_operation_fails(void **state)
{
    uint64_t ops = spill_case(ZN_FAULT_EIO, 0, false);

    (void)state;
    assert_true(ops > 0 && ops < OPS_MAX);
    for (size_t k = 0; k < ZB_COUNT(kinds); k++)
        for (uint64_t op = 0; op < ops; op++)
            (void)spill_case(kinds[k], op, true);
    print_message(
        "%llu operations: %llu cases, %llu pushes failed, %llu found a corrupt page; %llu "
        "steps failed, %llu left what could not be read, %llu were whole\n",
        (unsigned long long)ops, (unsigned long long)count.cases,
        (unsigned long long)count.pushes_io, (unsigned long long)count.pushes_bad,
        (unsigned long long)count.steps, (unsigned long long)count.read_bad,
        (unsigned long long)count.whole);
    assert_true(count.pushes_io > 0 && count.pushes_bad > 0 && count.steps > 0 &&
                count.read_bad > 0 && count.whole > ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(each_operation_fails) };

    zs_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
