#include "examples/gpt/note.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const optimizers[] = { "adamw", "adam", "lion", "sgd", "adagrad", "muon" };
static const char *const dtypes[] = { "fp32", "bf16", "fp16" };
static const char *const moments[] = { "fp32", "bf16", "8bit", "8bit-lo" };

size_t gpt_note_write(char note[GPT_NOTE_BYTES], const struct gpt_args *args,
                      const struct gpt_data_info *data, uint64_t step)
{
    int n = snprintf(note, GPT_NOTE_BYTES,
                     "zgpt 1\n"
                     "layers %u\nheads %u\nwidth %u\nseq %u\ndtype %s\n"
                     "optimizer %s\nmoments %s\n"
                     "seed %" PRIu64 "\nbatch %u\n"
                     "data %" PRIu64 " tokens, hash %016" PRIx64 "\n"
                     "step %" PRIu64 "\n",
                     args->layers, args->heads, args->width, args->seq, dtypes[args->dtype],
                     optimizers[args->optimizer], moments[args->moments], args->seed, args->batch,
                     data->tokens, data->hash, step);

    assert(n > 0 && (unsigned)n < GPT_NOTE_BYTES);
    return (size_t)n;
}

int gpt_note_check(const char *note, size_t bytes, const struct gpt_args *args,
                   const struct gpt_data_info *data, uint64_t step, struct zb_err *err)
{
    char want[GPT_NOTE_BYTES];
    const char *w = want, *n = note, *end = note + bytes;

    (void)gpt_note_write(want, args, data, step);
    while (*w) {
        size_t wn = strcspn(w, "\n") + 1;
        const char *stop = memchr(n, '\n', (size_t)(end - n));
        size_t nn = stop ? (size_t)(stop - n) + 1 : (size_t)(end - n);

        if (nn != wn || memcmp(w, n, wn) != 0)
            return zb_fail(err, -EEXIST,
                           "--resume: job '%s' is another run: its note has '%.*s', but this run "
                           "'%.*s'",
                           args->job, (int)(stop ? nn - 1 : nn), n, (int)wn - 1, w);
        w += wn;
        n += nn;
    }
    return 0;
}
