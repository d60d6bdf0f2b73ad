/*
 * util.h - small helpers that C lacks and every folder uses.
 *
 * Nothing here allocates, blocks or keeps state; every function is safe in any thread.
 */
#ifndef ZB_UTIL_H
#define ZB_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZB_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/** The struct of `type` whose member `member` is at `ptr`. */
#define zb_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define ZB_KIB                             (UINT64_C(1) << 10)
#define ZB_MIB                             (UINT64_C(1) << 20)
#define ZB_GIB                             (UINT64_C(1) << 30)

static inline uint64_t zb_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t zb_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/** ceil(a / b); b is not 0. */
static inline uint64_t zb_div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/** The smallest multiple of `to` that is at least a; the caller ensures that it does not overflow.
 */
static inline uint64_t zb_round_up(uint64_t a, uint64_t to)
{
    return zb_div_up(a, to) * to;
}

/** For sizes from outside: false, and *ret unchanged, if the result overflows. */
static inline bool zb_mul_fits(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;

    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

static inline bool zb_add_fits(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;

    if (__builtin_add_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

/** Whether [first, first + count) is inside [0, total). */
static inline bool zb_range_inside(uint64_t first, uint64_t count, uint64_t total)
{
    return first <= total && count <= total - first;
}

/*
 * An intrusive, doubly linked list. A node is initialised once (zb_list_init) and may be removed
 * even if it is in no list; an empty list is a node that points at itself.
 */
struct zb_list {
    struct zb_list *prev, *next;
};

static inline void zb_list_init(struct zb_list *l)
{
    l->prev = l->next = l;
}

static inline bool zb_list_empty(const struct zb_list *l)
{
    return l->next == l;
}

static inline void zb_list_push_back(struct zb_list *l, struct zb_list *node)
{
    node->prev = l->prev;
    node->next = l;
    l->prev->next = node;
    l->prev = node;
}

static inline void zb_list_remove(struct zb_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    zb_list_init(node);
}

/** Moves all of `from` in front of the nodes of `to`; leaves `from` empty. */
static inline void zb_list_splice_front(struct zb_list *from, struct zb_list *to)
{
    if (zb_list_empty(from))
        return;
    from->prev->next = to->next;
    to->next->prev = from->prev;
    to->next = from->next;
    from->next->prev = to;
    zb_list_init(from);
}

/** Removes and returns the first node, or NULL when the list is empty. */
static inline struct zb_list *zb_list_pop_front(struct zb_list *l)
{
    struct zb_list *node = l->next;

    if (node == l)
        return NULL;
    zb_list_remove(node);
    return node;
}

/** Walks a list; the body may remove the current node, and no other. */
#define zb_list_each(pos, list)                                                      \
    for (struct zb_list *pos = (list)->next, *pos##_next = pos->next; pos != (list); \
         pos = pos##_next, pos##_next = pos->next)

/** Closes *fd if it is open, and sets it to -1. */
void zb_close_fd(int *fd);

/** Monotonic time: for deadlines and durations, never for dates. */
uint64_t zb_now_ns(void);

#endif
