#include "base/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 16u

int zb_grow_bytes(void *array, size_t *room, size_t n, size_t more, size_t each)
{
    size_t want, bytes, twice = *room < ROOM_FIRST / 2 ? ROOM_FIRST : 2 * *room;
    void *at;

    if (__builtin_add_overflow(n, more, &want))
        return -ENOMEM;
    if (want <= *room)
        return 0;
    want = want > twice ? want : twice;
    if (__builtin_mul_overflow(want, each, &bytes))
        return -ENOMEM;
    memcpy(&at, array, sizeof(at)); /* the caller's pointer may have any type */
    at = realloc(at, bytes);
    if (!at)
        return -ENOMEM;
    memcpy(array, &at, sizeof(at));
    *room = want;
    return 0;
}
