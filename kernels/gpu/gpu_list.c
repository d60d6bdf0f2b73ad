/*
 * gpu_list.c - lists of devices: the words that people write, and the names of one device each that
 * zk_gpu_open() takes. And which of them a process uses that is one of several on its machine.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu/gpu_priv.h"

static int list_add(struct zk_gpu_list *list, const char *name, struct zb_err *err)
{
    if (list->n == ZK_GPU_LIST_MAX)
        return zb_fail(err, -EINVAL, "too many GPUs: at most %u", ZK_GPU_LIST_MAX);
    if (strlen(name) >= sizeof(list->names[0]))
        return zb_fail(err, -EINVAL, "'%s' is too long for the name of a GPU", name);
    (void)snprintf(list->names[list->n++], sizeof(list->names[0]), "%s", name);
    return 0;
}

/* "all": every device of CUDA. */
static int list_all(struct zk_gpu_list *list, struct zb_err *err)
{
    unsigned n = 0;
    int rc = zk_gpu_cuda_count(&n, err);

    if (rc == 0 && n == 0)
        return zb_fail(err, -ENODEV, "no GPU: there is none");
    for (unsigned i = 0; i < n && rc == 0; i++) {
        char name[24];

        (void)snprintf(name, sizeof(name), "cuda:%u", i);
        rc = list_add(list, name, err);
    }
    return rc;
}

/* Reads "*COUNT[/NODES]" at *rest, as far as it is there. */
static bool emulated_count(const char **rest, unsigned long *ret, unsigned long *ret_nodes)
{
    char *end = NULL;

    *ret = 1;
    *ret_nodes = 0;
    if (**rest != '*')
        return true;
    *ret = isdigit((unsigned char)(*rest)[1]) ? strtoul(*rest + 1, &end, 10) : 0;
    if (*ret >= 1 && *end == '/') {
        *ret_nodes = isdigit((unsigned char)end[1]) ? strtoul(end + 1, &end, 10) : 0;
        if (*ret_nodes < 1 || *ret_nodes > *ret)
            return false;
    }
    *rest = end;
    return *ret >= 1 && *ret <= ZK_GPU_LIST_MAX && (*end == '\0' || *end == ':');
}

/* "emulated[*COUNT[/NODES]][:ARGS]": these devices get the next numbers. */
static int list_emulated(struct zk_gpu_list *list, const char *word, unsigned *number,
                         struct zb_err *err)
{
    const char *rest = word + strlen(zk_gpu_emulated.name);
    unsigned long count, nodes;
    int rc = 0;

    if (*rest == '@')
        return list_add(list, word, err); /* it has a number */
    if (!emulated_count(&rest, &count, &nodes))
        return zb_fail(err, -EINVAL,
                       "'%s': emulated*N[/NODES] has N from 1 to %u, and 1 to N nodes", word,
                       ZK_GPU_LIST_MAX);
    for (unsigned long i = 0; i < count && rc == 0; i++, ++*number) {
        char name[ZK_GPU_NAME_MAX * 2], at[16] = "", node[16] = "";

        if (*number > 0)
            (void)snprintf(at, sizeof(at), "@%u", *number);
        if (nodes > 0)
            (void)snprintf(node, sizeof(node), "/%lu", i * nodes / count);
        (void)snprintf(name, sizeof(name), "%s%s%s%.64s", zk_gpu_emulated.name, at, node, rest);
        rc = list_add(list, name, err);
    }
    return rc;
}

static int list_word(struct zk_gpu_list *list, const char *word, unsigned *emulated,
                     struct zb_err *err)
{
    char name[ZK_GPU_NAME_MAX * 2];

    if (strcmp(word, "all") == 0)
        return list_all(list, err);
    if (strncmp(word, zk_gpu_emulated.name, strlen(zk_gpu_emulated.name)) == 0)
        return list_emulated(list, word, emulated, err);
    /* an index, a UUID or an address: of CUDA's */
    (void)snprintf(name, sizeof(name), "%s%.64s",
                   isdigit((unsigned char)word[0]) || strncmp(word, "GPU-", 4) == 0 ? "cuda:" : "",
                   word);
    return list_add(list, name, err);
}

int zk_gpu_list(const char *text, struct zk_gpu_list *ret, struct zb_err *err)
{
    unsigned emulated = 0;
    int rc = 0;

    ret->n = 0;
    for (const char *at = text; rc == 0; at++) {
        char word[ZK_GPU_NAME_MAX * 2];
        size_t len = strcspn(at, ",");

        if (len == 0 || len >= sizeof(word))
            return zb_fail(err, -EINVAL, "'%s' is not a list of GPUs", text);
        memcpy(word, at, len);
        word[len] = '\0';
        rc = list_word(ret, word, &emulated, err);
        at += len;
        if (*at == '\0')
            break;
    }
    return rc;
}

/* This process's place among those of its machine, as launchers say it. False: none did. */
static bool local_rank(unsigned *ret)
{
    static const char *const names[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "SLURM_LOCALID", "MPI_LOCALRANKID" };

    for (size_t i = 0; i < ZB_COUNT(names); i++) {
        const char *text = getenv(names[i]);
        size_t len = text ? strlen(text) : 0;

        if (len > 0 && len < 6 && strspn(text, "0123456789") == len) {
            *ret = (unsigned)atoi(text);
            return true;
        }
    }
    return false;
}

int zk_gpu_local(const char *name, unsigned place, char ret[ZK_GPU_NAME_MAX], struct zb_err *err)
{
    struct zk_gpu_list list;
    unsigned rank = place;
    bool known = local_rank(&rank);
    /* the first process uses the first device of "cuda", as the runtime chooses it */
    int rc =
        zk_gpu_list((known || place > 0) && strcmp(name, "cuda") == 0 ? "all" : name, &list, err);

    if (rc < 0)
        return rc;
    (void)snprintf(ret, ZK_GPU_NAME_MAX, "%s", list.names[rank % list.n]);
    return 0;
}
