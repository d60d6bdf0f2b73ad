/*
 * notes.c - what the stores that keep everything in this process have in common: notes, which are
 * sent ahead of a step and kept with it, and waiting for nobody.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/zero/zero_priv.h"

int zcz_store_nap(struct zcz_store *s, uint32_t wait_us)
{
    struct timespec nap = { .tv_nsec = (long)wait_us * 1000 };

    (void)s;
    if (wait_us > 0)
        (void)nanosleep(&nap, NULL); /* woken early by a signal: the caller looks again */
    return 0;
}

int zcz_note_put(struct zc_zero *z, struct zcz_notes *notes, bool of_job, const void *note,
                 size_t bytes)
{
    struct zcz_note *n = &notes->of[of_job];
    unsigned char *copy = malloc(bytes + 1); /* an empty note is one, too */

    if (!copy)
        return zcz_refuse(z, -ENOMEM, "no memory for a note of %zu bytes", bytes);
    if (bytes > 0)
        memcpy(copy, note, bytes);
    free(n->sent);
    n->sent = copy;
    n->sent_bytes = bytes;
    return 0;
}

int zcz_note_get(struct zc_zero *z, const struct zcz_notes *notes, bool of_job, void *buf,
                 size_t *ret_bytes)
{
    const struct zcz_note *n = &notes->of[of_job];

    if (!n->kept)
        return zcz_refuse(z, -ENOENT, "the newest step has no note");
    memcpy(buf, n->kept, n->kept_bytes);
    *ret_bytes = n->kept_bytes;
    return 0;
}

void zcz_notes_keep(struct zcz_notes *notes)
{
    for (size_t i = 0; i < ZB_COUNT(notes->of); i++) {
        struct zcz_note *n = &notes->of[i];

        if (!n->sent)
            continue;
        free(n->kept);
        n->kept = n->sent;
        n->kept_bytes = n->sent_bytes;
        n->sent = NULL;
    }
}

void zcz_notes_done(struct zcz_notes *notes)
{
    for (size_t i = 0; i < ZB_COUNT(notes->of); i++) {
        free(notes->of[i].sent);
        free(notes->of[i].kept);
    }
}
