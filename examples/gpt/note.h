/*
 * note.h - what a run is, in the note that the daemon keeps with each of its steps.
 *
 * MODEL. Lines of text, "word value". Batches, initial values and all else that is random follow
 * from the seed and the number of the step (rng.h, data.h), and the optimizer's state is the
 * daemon's; so the step is all the position there is, and the rest of the note says of which run:
 * whoever goes on with other data, another shape, seed or batch would train something else. Not in
 * it is what may change between two steps: the rates, the clipping, the number of ranks, how many
 * sequences one computes at a time (these two change sums by rounding only), and --steps.
 */
#ifndef GPT_NOTE_H
#define GPT_NOTE_H

#include <stddef.h>
#include <stdint.h>

#include "examples/gpt/args.h"
#include "examples/gpt/data.h"

#define GPT_NOTE_BYTES 512u

/** Of step `step`. Returns its bytes, a '\0' behind them not counted. */
size_t gpt_note_write(char note[GPT_NOTE_BYTES], const struct gpt_args *args,
                      const struct gpt_data_info *data, uint64_t step);

/** Whether a note is of this run, and of step `step`: 0, or -EEXIST with the first line that
 *  differs. */
int gpt_note_check(const char *note, size_t bytes, const struct gpt_args *args,
                   const struct gpt_data_info *data, uint64_t step, struct zb_err *err);

#endif
