/*
 * cuda_double.h - a double of the CUDA runtime and driver, as strict as they are: the host code of
 * kernels/cuda/ runs on machines without a GPU, with several devices, under sanitizers.
 *
 * MODEL. The double is linked with kernels/cuda/device*.c into a plugin of the name that gpu.c
 * loads. A device is a budget of bytes. Its memory consists of memfds, which the device's threads
 * see elsewhere: the host cannot touch its addresses. A stream is a thread with a queue.
 *
 * REFUSED AT ONCE, with the error that CUDA gives: handles that are not alive, or are another
 * device's; sizes and addresses that are not multiples of the granularity; memory that is mapped
 * twice, or freed while it is mapped; host memory that is pinned in part, or twice, or is not
 * mapped; any call within a host function; calls of a thread that has chosen no device.
 *
 * LOST. A work that reaches memory that is not mapped, not accessible from its device, or unmapped
 * while the work runs loses the device: every later call on it gives cudaErrorIllegalAddress. What
 * is destroyed is destroyed nevertheless.
 *
 * LAST ERROR. As in the runtime, a failed call stays the last error of its thread until it is
 * asked for, and a later launch reports it as its own.
 *
 * Environment: CUDA_DOUBLE_DEVICES (2), CUDA_DOUBLE_BYTES of each (256 MiB).
 */
#ifndef CUDA_DOUBLE_H
#define CUDA_DOUBLE_H

#include <stdbool.h>
#include <stdint.h>

#define CUDA_DOUBLE_GRANULARITY (UINT64_C(2) << 20)
#define CUDA_DOUBLE_DEVICES_MAX 8u

/** How the call that cuda_double_fail_at() names fails. */
enum cuda_double_failure {
    CUDA_DOUBLE_UNKNOWN, /* an error that stands for itself; nothing was done */
    CUDA_DOUBLE_NO_MEMORY,
    CUDA_DOUBLE_LOST, /* the device is lost */
};

/** What the plugin exports for tests, as `cuda_double`. Any thread may call these. */
struct cuda_double {
    /** The n-th call from now on fails (1: the next one); 0: none. */
    void (*fail_at)(unsigned n, enum cuda_double_failure how);
    /** The name of the call that failed so, or NULL: it has not come. */
    const char *(*failed)(void);
    /** What is alive: "" or a list, such as "2 streams, 1 pin". Valid until the next call. */
    const char *(*left)(void);
    /** Copies from or to memory that is not pinned, so far. */
    unsigned (*pageable)(void);
    /** Frees what is alive, and makes devices and traits as new. Nothing may be in progress. */
    void (*reset)(void);
    /** Properties of all devices; changed before a device is opened. */
    struct cuda_double_traits {
        int capability;      /* major; 9 */
        bool pins_read_only; /* false */
        bool no_map;         /* cannot map its memory */
        bool no_export;      /* its environment refuses to export memory */
        bool no_read_access; /* knows no access for reading only */
        const char *missing; /* a function that the driver lacks; NULL */
    } * traits;
};

#endif
