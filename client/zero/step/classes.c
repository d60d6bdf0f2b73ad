/*
 * classes.c - the trainer's arguments of a step (struct zc_zero_step_how): checked, compared by a
 * hash, and made into classes of tensors (struct zc_classes), or into groups if that is equivalent.
 *
 * MODEL. A tensor's class consists of its group's scalars, its factor and its own step count.
 * Tensors without a gradient on any rank, and those of ZC_GROUP_NONE, have no class. All of this is
 * equal on all ranks, so all ranks make the same classes, and refuse the same steps.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "client/zero/config/options.h"
#include "client/zero/step/classes.h"
#include "client/zero/step/step.h"

#define SLOTS (4 * ZC_CLASSES_MAX) /* size of the hash table of classes; a power of two */

/* ---- the trainer's arguments */

static int how_groups(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    if (how->ngroups < 1 || !how->groups)
        return zcz_refuse(z, -EINVAL, "a step without groups");
    for (uint32_t g = 0; g < how->ngroups; g++) {
        struct zk_params params = zcz_params(&how->groups[g], 1);
        struct zb_err why = { 0 };

        if (zk_params_check((enum zb_optimizer)z->options.optimizer, &params, &why) < 0)
            return zcz_refuse(z, -EINVAL, "group %u: %s", g, why.text);
    }
    return 0;
}

int zcz_how_check(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    uint32_t trained = 0;
    int rc = how_groups(z, how);

    if (rc < 0)
        return rc;
    if (!(how->divide >= 0 && isfinite(how->divide)) || !(how->clip >= 0 && isfinite(how->clip)))
        return zcz_refuse(z, -EINVAL, "a step with divisor %g and clip %g: 0, or above",
                          how->divide, how->clip);
    for (uint32_t i = 0; i < z->nunits; i++)
        for (uint32_t t = 0; t < z->units[i].def.ntensors; t++) {
            const struct zcz_unit *u = &z->units[i];
            uint32_t group = u->def.tensors[t].group;

            if (!zcz_tensor_trained(u, t))
                continue;
            if (how->group_of)
                group = how->group_of[trained];
            if (group >= how->ngroups && !(how->group_of && group == ZC_GROUP_NONE))
                return zcz_refuse(z, -EINVAL, "tensor '%s' of unit '%s' is in group %u of %u",
                                  u->def.tensors[t].name, u->def.name, group, how->ngroups);
            if (how->factors && !isfinite(how->factors[trained]))
                return zcz_refuse(z, -EINVAL, "tensor '%s' of unit '%s' has factor %g",
                                  u->def.tensors[t].name, u->def.name, how->factors[trained]);
            trained++;
        }
    return 0;
}

static uint64_t hash_add(uint64_t h, uint64_t x)
{
    h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static uint64_t bits_of(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

uint64_t zcz_how_hash(const struct zc_zero *z, const struct zc_zero_step_how *how)
{
    uint64_t h = how->ngroups;

    for (uint32_t g = 0; g < how->ngroups; g++) {
        const struct zk_params params = zcz_params(&how->groups[g], 1);
        uint64_t words[sizeof(params) / sizeof(uint64_t)];

        memcpy(words, &params, sizeof(words));
        for (size_t i = 0; i < ZB_COUNT(words); i++)
            h = hash_add(h, words[i]);
    }
    h = hash_add(hash_add(h, bits_of(how->divide)), bits_of(how->clip));
    h = hash_add(h, (how->group_of ? 1u : 0) | (how->factors ? 2u : 0));
    for (uint32_t i = 0; i < z->steps->ntrained; i++) {
        h = hash_add(h, how->group_of ? how->group_of[i] : 0);
        h = hash_add(h, how->factors ? bits_of((double)how->factors[i]) : 0);
    }
    return h;
}

bool zcz_how_by_tensor(const struct zc_zero *z, const struct zc_zero_step_how *how)
{
    if (how->factors)
        return true;
    for (uint32_t i = 0; i < z->steps->ntrained && how->group_of; i++)
        if (how->group_of[i] == ZC_GROUP_NONE)
            return true;
    return false;
}

/* ---- classes */

struct maker {
    struct zc_zero *z;
    const struct zc_zero_step_how *how;
    uint16_t slots[SLOTS];           /* 1 + the class */
    uint32_t groups[ZC_CLASSES_MAX]; /* of each class */
};

/* Finds or adds the class with these values. ZC_CLASS_NONE: there are too many. */
static uint32_t class_find(struct maker *m, uint32_t group, double factor, uint64_t t)
{
    struct zcz_steps *steps = m->z->steps;
    struct zc_class *classes = steps->class_table;
    uint64_t slot = hash_add(hash_add(hash_add(0, group), bits_of(factor)), t);

    for (;; slot++) {
        uint16_t *at = &m->slots[slot % SLOTS];
        uint32_t class = *at - 1u;

        if (*at == 0) {
            if (steps->classes.nclasses == ZC_CLASSES_MAX)
                return ZC_CLASS_NONE;
            class = steps->classes.nclasses++;
            classes[class] = (struct zc_class){ m->how->groups[group], factor, t };
            m->groups[class] = group;
            *at = (uint16_t)(class + 1);
        }
        if (m->groups[class] == group && classes[class].t == t &&
            bits_of(classes[class].factor) == bits_of(factor))
            return class;
    }
}

static int classes_room(struct zc_zero *z)
{
    struct zcz_steps *steps = z->steps;

    if (!steps->class_table)
        steps->class_table = calloc(ZC_CLASSES_MAX, sizeof(*steps->class_table));
    if (!steps->class_of)
        steps->class_of = calloc(zb_max_u64(steps->ntrained, 1), sizeof(*steps->class_of));
    if (!steps->class_table || !steps->class_of)
        return zcz_refuse(z, -ENOMEM, "no memory for the classes of %u tensors", steps->ntrained);
    steps->classes = (struct zc_classes){ .classes = steps->class_table,
                                          .class_of = steps->class_of,
                                          .ntensors = steps->ntrained };
    return 0;
}

void zcz_classes_close(struct zc_zero *z)
{
    free(z->steps->class_table);
    free(z->steps->class_of);
}

/* Whether the groups as declared give the same for this tensor. */
static bool class_plain(const struct maker *m, const struct zc_tensor *t, uint32_t group,
                        double factor, uint64_t lag)
{
    return group == t->group && factor == 1 && lag == 0 && m->how->ngroups >= m->z->options.groups;
}

static int classes_make(struct maker *m, const unsigned char *used, bool *ret_plain,
                        uint32_t *ret_alone)
{
    struct zc_zero *z = m->z;
    uint32_t all = 0, n = 0;

    *ret_plain = true;
    *ret_alone = 0;
    for (uint32_t i = 0; i < z->nunits; i++)
        for (uint32_t t = 0; t < z->units[i].def.ntensors; t++, all++) {
            const struct zc_tensor *tensor = &z->units[i].def.tensors[t];
            bool frozen = z->units[i].frozen_now;
            bool is = !frozen && (!used || (used[all / 8] & (1u << all % 8)));
            uint32_t group;
            double factor;

            *ret_plain &= !frozen;
            if (!zcz_tensor_trained(&z->units[i], t))
                continue;
            group = m->how->group_of ? m->how->group_of[n] : tensor->group;
            factor = m->how->factors ? (double)m->how->factors[n] : 1;
            *ret_plain &= is && class_plain(m, tensor, group, factor, z->steps->lags[all]);
            *ret_alone += !is && !frozen;
            z->steps->class_of[n] = ZC_CLASS_NONE;
            if (is && group != ZC_GROUP_NONE) {
                z->steps->class_of[n] =
                    class_find(m, group, factor, z->applied + 1 - z->steps->lags[all]);
                if (z->steps->class_of[n] == ZC_CLASS_NONE)
                    return zcz_refuse(z, -EINVAL,
                                      "a step with more than %d different pairs of group, factor "
                                      "and step count of a tensor",
                                      ZC_CLASSES_MAX);
            }
            n++;
        }
    return 0;
}

int zcz_classes_make(struct zc_zero *z, const struct zc_zero_step_how *how,
                     const unsigned char *used, const struct zc_classes **ret, uint32_t *ret_alone)
{
    struct maker *m;
    bool plain;
    int rc = classes_room(z);

    if (rc < 0)
        return rc;
    m = calloc(1, sizeof(*m));
    if (!m)
        return zcz_refuse(z, -ENOMEM, "no memory for the classes of a step");
    m->z = z;
    m->how = how;
    rc = classes_make(m, used, &plain, ret_alone);
    free(m);
    *ret = rc == 0 && !plain ? &z->steps->classes : NULL;
    return rc;
}
