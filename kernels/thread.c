/*
 * thread.c - the floating-point modes of a thread.
 *
 * Rounding is set by C's own function (on x86 for the x87 unit and for SSE). Flushing of denormals
 * to zero is not in C: on x86 it is two bits of MXCSR; on aarch64 FPCR has FZ and, on newer
 * processors, FZ16, FIZ and AH, which read as zero elsewhere, and AHP, another format of fp16.
 * Where an architecture has no such mode, there is nothing to do.
 */
#include <assert.h>
#include <fenv.h>

#include "kernels/zk.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

#define MXCSR_DAZ (1u << 6)
#define MXCSR_FTZ (1u << 15)

static void denormals_on(void)
{
    _mm_setcsr(_mm_getcsr() & ~(MXCSR_DAZ | MXCSR_FTZ));
}
#elif defined(__aarch64__)
#define FPCR_FIZ  (UINT64_C(1) << 0)
#define FPCR_AH   (UINT64_C(1) << 1)
#define FPCR_FZ16 (UINT64_C(1) << 19)
#define FPCR_FZ   (UINT64_C(1) << 24)
#define FPCR_AHP  (UINT64_C(1) << 26)

static void denormals_on(void)
{
    uint64_t fpcr;

    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr &= ~(FPCR_FIZ | FPCR_AH | FPCR_FZ16 | FPCR_FZ | FPCR_AHP);
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
}
#else
static void denormals_on(void)
{
}
#endif

void zk_thread_init(void)
{
    int rc = fesetround(FE_TONEAREST);

    assert(rc == 0);
    (void)rc;
    denormals_on();
}
