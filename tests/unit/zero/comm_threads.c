#include "comm_threads.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/ztest.h"

#define RANKS_MAX 8

enum kind { ALL_GATHER, EXCHANGE };

/* One rank's part of a collective. */
struct part {
    enum kind kind;
    size_t slice_bytes;
    uint64_t name;
    void *sent; /* NULL: not started */
};

struct coll {
    uint32_t started, finished;
    struct part parts[RANKS_MAX];
};

struct rank {
    struct zc_comm comm;
    struct comm_group *group;
    uint32_t next;   /* the number of collectives that it started */
    uint32_t splits; /* the number of splits that it asked for */
    uint32_t top;    /* its rank in the group before all splits */
    uint64_t name;   /* of the next collective */
    bool differs;    /* whether its last failure was a difference */
    struct zc_comm_other other;
    uint32_t break_at;
    int break_rc;
};

struct comm_group {
    pthread_mutex_t lock;
    bool aborted;
    enum comm_names names;
    uint32_t world, delay_max;
    uint64_t seed;
    struct coll **colls;
    uint32_t ncolls, room;
    struct zb_list ops;
    struct rank ranks[RANKS_MAX];
    struct comm_group *children[RANKS_MAX * RANKS_MAX]; /* by split and colour */
};

struct zc_comm_op {
    struct zb_list node; /* in group->ops: those of a failed engine are freed with the group */
    uint32_t number, delay;
    void *recv;
};

static struct rank *rank_of(struct zc_comm *comm)
{
    return zb_container_of(comm, struct rank, comm);
}

static struct coll *group_coll(struct comm_group *g, uint32_t number)
{
    if (number == g->ncolls) {
        if (g->ncolls == g->room) {
            g->room = g->room ? 2 * g->room : 64;
            g->colls = realloc(g->colls, g->room * sizeof(struct coll *));
            assert(g->colls);
        }
        g->colls[g->ncolls] = calloc(1, sizeof(struct coll));
        assert(g->colls[g->ncolls]);
        g->ncolls++;
    }
    return g->colls[number];
}

/* Compares with ranks that have started another collective: 0, or -EINVAL. Without names they must
 * not differ. */
static int coll_differs(struct rank *r, const struct coll *c)
{
    const struct part *mine = &c->parts[r->comm.rank];

    for (uint32_t s = 0; s < r->group->world; s++) {
        const struct part *p = &c->parts[s];

        if (!p->sent || (p->kind == mine->kind && p->slice_bytes == mine->slice_bytes &&
                         (p->name == mine->name || r->group->names == COMM_NAMES_LOST)))
            continue;
        assert(r->group->names == COMM_NAMES);
        r->differs = true;
        r->other = (struct zc_comm_other){ r->group->ranks[s].top, mine->name, p->name };
        return -EINVAL;
    }
    return 0;
}

static int start(struct zc_comm *comm, enum kind kind, const void *send, void *recv, size_t bytes,
                 struct zc_comm_op **ret)
{
    struct rank *r = rank_of(comm);
    struct comm_group *g = r->group;
    size_t sent_bytes = kind == ALL_GATHER ? bytes : bytes * g->world;
    size_t recv_bytes = bytes * g->world;
    struct zc_comm_op *op = calloc(1, sizeof(*op));
    const char *from = send;
    char *to = recv;
    struct coll *c;

    assert(op && bytes > 0);
    assert(kind == ALL_GATHER || from + sent_bytes <= to || to + recv_bytes <= from);
    pthread_mutex_lock(&g->lock);
    op->number = r->next++;
    if (r->break_at > 0 && r->next >= r->break_at) {
        pthread_mutex_unlock(&g->lock);
        free(op);
        return r->break_rc;
    }
    c = group_coll(g, op->number);
    c->parts[comm->rank] = (struct part){ kind, bytes, r->name, malloc(sent_bytes) };
    assert(c->parts[comm->rank].sent);
    memcpy(c->parts[comm->rank].sent, send, sent_bytes);
    r->name = 0;
    c->started++;
    zb_list_push_back(&g->ops, &op->node);
    op->delay = g->delay_max ? (uint32_t)(ztest_random(&g->seed) % (g->delay_max + 1)) : 0;
    pthread_mutex_unlock(&g->lock);
    for (size_t i = 0; i < recv_bytes; i++) /* send may be inside recv */
        if (to + i < from || to + i >= from + sent_bytes)
            to[i] = (char)0xa5;
    op->recv = recv;
    *ret = op;
    return 0;
}

static int all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                      struct zc_comm_op **ret)
{
    return start(comm, ALL_GATHER, send, recv, slice_bytes, ret);
}

static int exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                    struct zc_comm_op **ret)
{
    return start(comm, EXCHANGE, send, recv, slice_bytes, ret);
}

static int test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    struct rank *r = rank_of(comm);
    struct comm_group *g = r->group;
    const struct part *mine;
    struct coll *c;
    int rc;

    pthread_mutex_lock(&g->lock);
    c = g->colls[op->number];
    mine = &c->parts[comm->rank];
    rc = coll_differs(r, c);
    if (rc < 0 || g->aborted) {
        pthread_mutex_unlock(&g->lock);
        return rc < 0 ? rc : -EIO;
    }
    *ret_done = c->started == g->world && op->delay == 0;
    if (c->started == g->world && op->delay > 0)
        op->delay--;
    for (uint32_t s = 0; *ret_done && s < g->world; s++)
        memcpy((char *)op->recv + s * mine->slice_bytes,
               (char *)c->parts[s].sent +
                   (mine->kind == EXCHANGE ? comm->rank * mine->slice_bytes : 0),
               mine->slice_bytes);
    if (*ret_done && ++c->finished == g->world)
        for (uint32_t s = 0; s < g->world; s++) {
            free(c->parts[s].sent);
            c->parts[s].sent = NULL;
        }
    if (*ret_done) {
        zb_list_remove(&op->node);
        free(op);
    }
    pthread_mutex_unlock(&g->lock);
    return 0;
}

/* The group of the ranks with the same colour; the first of them makes it. */
static struct comm_group *child(struct comm_group *g, uint32_t split, uint32_t colour,
                                uint32_t world)
{
    struct comm_group **at = &g->children[split * RANKS_MAX + colour];

    assert(split < RANKS_MAX && colour < RANKS_MAX);
    pthread_mutex_lock(&g->lock);
    if (!*at) {
        *at = comm_group_new(world, g->seed + split + colour, g->delay_max);
        comm_group_names(*at, g->names);
    }
    pthread_mutex_unlock(&g->lock);
    return *at;
}

static int split(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret)
{
    struct rank *r = rank_of(comm);
    uint32_t colours[RANKS_MAX], world = 0, place = 0;
    struct zc_comm_op *op;
    bool done = false;
    int rc = all_gather(comm, &colour, colours, sizeof(colour), &op);

    while (rc == 0 && !done)
        rc = test(comm, op, &done);
    if (rc != 0)
        return rc;
    for (uint32_t s = 0; s < comm->world; s++) {
        place += s < comm->rank && colours[s] == colour;
        world += colours[s] == colour;
    }
    *ret = comm_group_rank(child(r->group, r->splits++, colour, world), place);
    rank_of(*ret)->top = r->top;
    return 0;
}

static void close_comm(struct zc_comm *comm, bool clean)
{
    (void)comm;
    (void)clean;
}

static const char *error(struct zc_comm *comm)
{
    (void)comm;
    return "the test broke it";
}

static void name_next(struct zc_comm *comm, uint64_t name)
{
    rank_of(comm)->name = name;
}

static bool other(struct zc_comm *comm, struct zc_comm_other *ret)
{
    *ret = rank_of(comm)->other;
    return rank_of(comm)->differs;
}

static const struct zc_comm_ops ops = {
    .name = "threads",
    .all_gather = all_gather,
    .exchange = exchange,
    .test = test,
    .close = close_comm,
    .error = error,
    .split = split,
    .name_next = name_next,
    .other = other,
};

static const struct zc_comm_ops plain_ops = {
    .name = "threads",
    .all_gather = all_gather,
    .exchange = exchange,
    .test = test,
    .close = close_comm,
    .error = error,
    .split = split,
};

struct comm_group *comm_group_new(uint32_t world, uint64_t seed, uint32_t delay_max)
{
    struct comm_group *g = calloc(1, sizeof(*g));

    assert(g && world <= RANKS_MAX);
    pthread_mutex_init(&g->lock, NULL);
    zb_list_init(&g->ops);
    g->world = world;
    g->seed = seed;
    g->delay_max = delay_max;
    for (uint32_t r = 0; r < world; r++)
        g->ranks[r] = (struct rank){ .comm = { .ops = &ops, .rank = r, .world = world },
                                     .group = g,
                                     .top = r };
    return g;
}

void comm_group_names(struct comm_group *g, enum comm_names names)
{
    g->names = names;
    for (uint32_t r = 0; r < g->world; r++)
        g->ranks[r].comm.ops = names == COMM_NO_NAMES ? &plain_ops : &ops;
}

void comm_group_free(struct comm_group *g)
{
    for (uint32_t i = 0; i < g->ncolls; i++) {
        for (uint32_t s = 0; s < g->world; s++)
            free(g->colls[i]->parts[s].sent);
        free(g->colls[i]);
    }
    zb_list_each(pos, &g->ops)
    {
        zb_list_remove(pos);
        free(zb_container_of(pos, struct zc_comm_op, node));
    }
    free(g->colls);
    for (size_t i = 0; i < ZB_COUNT(g->children); i++)
        if (g->children[i])
            comm_group_free(g->children[i]);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

struct zc_comm *comm_group_rank(struct comm_group *g, uint32_t rank)
{
    return &g->ranks[rank].comm;
}

void comm_group_break(struct comm_group *g, uint32_t rank, uint32_t nth, int rc)
{
    g->ranks[rank].break_at = nth;
    g->ranks[rank].break_rc = rc;
}

void comm_group_abort(struct comm_group *g)
{
    pthread_mutex_lock(&g->lock);
    g->aborted = true;
    for (size_t i = 0; i < ZB_COUNT(g->children); i++)
        if (g->children[i])
            comm_group_abort(g->children[i]);
    pthread_mutex_unlock(&g->lock);
}
