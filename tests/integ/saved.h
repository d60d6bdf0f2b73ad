/*
 * saved.h - a small durable job for tests of what survives. It is trained step by step; everything
 * that it holds is read, every byte of every plane, and compared. The gradients of a step depend
 * only on its number, so a repeated step has the same result.
 */
#ifndef ZINTEG_SAVED_H
#define ZINTEG_SAVED_H

#include "tests/integ/zinteg.h"

#define SV_UNITS     5u
#define SV_GROUPS    1u
#define SV_PLACES    4u
#define SV_WORLD_MAX 8u
#define SV_STEPS_MAX 16u
#define SV_WHATS     4u
#define SV_BUFFER    (8192 * ZI_BUFFER_BYTES) /* of --ring-bytes */

/* Odd sizes: less than a block, whole pages, pages and a partial one; one that never changes. */
extern const struct zc_unit *sv_units; /* SV_UNITS of them; a test may have others */
extern const struct zc_group sv_groups[SV_GROUPS];

/* Everything resident; everything streamed except the ring; and about half and half. */
struct sv_place {
    const char *name;
    uint64_t host_bytes_max;
    const char *io;
};
extern const struct sv_place sv_places[SV_PLACES];

/** Options of the daemon. */
extern const char *sv_options[];
#define SV_OPTION_NVME 3 /* the value of --nvme-bytes */
#define SV_OPTION_PAGE 5 /* the value of --page-elems */

/** Options of the job: "job", AdamW and fp32 unless a test sets others. */
extern const char *sv_name;
extern enum zc_optimizer sv_optimizer;
extern enum zc_moments sv_moments;
extern enum zc_place sv_param;
extern const char *sv_device; /* with ZC_GPU */

/* What a job holds, by unit and element, whichever rank has it. */
struct sv_dump {
    float *values[SV_UNITS][SV_WHATS];
};

struct zc_job_options sv_job(unsigned place);
/** Starts a daemon, opens the job and writes its initial values. */
void sv_begin(struct zi_rank *ranks, unsigned world, struct zi_daemon *d, unsigned place);
/** Opens the job and writes its initial values. */
void sv_open(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d, unsigned place);
/** The initial value of an element. */
float sv_value(uint64_t element);
void sv_fill(struct zi_rank *ranks, unsigned world);
/** Pushes the gradients of a step. */
void sv_push(struct zi_rank *ranks, unsigned world, uint64_t number);
/** The same; 0, or the first refusal and the rank that it was for. */
int sv_push_try(struct zi_rank *ranks, unsigned world, uint64_t number, unsigned *rank);
/** Pushes the gradients of a step and makes the step; it must succeed. */
void sv_step(struct zi_rank *ranks, unsigned world, uint64_t number, enum zc_commit commit);
/** Every rank attaches, registers its slices and names the point to resume from (NULL: none). */
int sv_attach(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d, unsigned place,
              bool takeover, const uint64_t *at);
/** Every rank hangs up without closing its job. */
void sv_hang_up(struct zi_rank *ranks, unsigned world);

void sv_dump_take(struct sv_dump *d, struct zi_rank *ranks, unsigned world);
void sv_dump_same(const char *when, struct sv_dump *was, struct zi_rank *ranks, unsigned world);
void sv_dump_free(struct sv_dump *d);

/** What a run of two ranks whose data never moves has after each step: want[0 .. steps]. Returns
 * the bytes of its optimizer state, all in host memory. */
uint64_t sv_want(struct sv_dump *want, uint64_t steps);
void sv_want_free(struct sv_dump *want, uint64_t steps);

/** Changes a bit in every byte of the pages of the data file; a second time, back. */
void sv_flip_all(const struct zi_daemon *d);

#endif
