/*
 * note.h - identifies a run, in the note that the daemon keeps with each of its steps.
 *
 * MODEL. Lines of text, "word value". Batches, initial values and all other random numbers follow
 * from the seed and the number of the step (rng.h, data.h), and the daemon has the optimizer's
 * state. So the step is the only position that is needed. The other lines identify the run: with
 * other data, or another shape, seed or batch, a resumed run would train something else. Values
 * that may change between two steps are left out: the rates, the clipping, --steps, the number of
 * ranks and the micro-batch size (these two change sums only by rounding).
 */
#ifndef GPT_NOTE_H
#define GPT_NOTE_H

#include <stddef.h>
#include <stdint.h>

#include "examples/gpt/args.h"
#include "examples/gpt/data.h"

#define GPT_NOTE_BYTES 512u

/** Writes the note of step `step`. Returns its length, without the terminating '\0'. */
size_t gpt_note_write(char note[GPT_NOTE_BYTES], const struct gpt_args *args,
                      const struct gpt_data_info *data, uint64_t step);

/** Checks that a note belongs to this run, and to step `step`. 0, or -EEXIST with the first line
 *  that differs. */
int gpt_note_check(const char *note, size_t bytes, const struct gpt_args *args,
                   const struct gpt_data_info *data, uint64_t step, struct zb_err *err);

#endif
