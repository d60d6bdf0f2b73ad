/*
 * nccl_priv.h - declares what comm_nccl.c uses of NCCL. The library is loaded at run time, and
 * nccl.h comes with it, not with the CUDA toolkit. Private to client/zero/ and its tests.
 *
 * SOURCE: nccl.h of NCCL 2.14 (github.com/NVIDIA/nccl, src/nccl.h.in), whose ABI all later versions
 * have kept: the values of the enums, the 128 bytes of an id, passed by value, and ncclConfig_t,
 * which only grows at its end and contains its length and version. comm_nccl.c compares that
 * version with ncclGetVersion().
 */
#ifndef ZC_NCCL_PRIV_H
#define ZC_NCCL_PRIV_H

#include <limits.h>
#include <stddef.h>

#define NCCL_VERSION_MIN     21400 /* major * 10000 + minor * 100 + patch, of this header */
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_MAGIC    0xcafebeefu

typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *ncclStream_t; /* cudaStream_t */

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8, /* in newer versions */
} ncclResult_t;

typedef enum { ncclInt8 = 0 } ncclDataType_t;

typedef struct {
    size_t size;
    unsigned magic;
    unsigned version; /* of the header that the struct is from */
    int blocking;
} ncclConfig_t;

/* Result type, name and parameters of each function. */
#define NCCL_FUNCTIONS(do_)                                                                       \
    do_(ncclResult_t, ncclGetVersion, (int *version)) do_(ncclResult_t, ncclGetUniqueId,          \
                                                          (ncclUniqueId * id))                    \
        do_(ncclResult_t, ncclCommInitRankConfig,                                                 \
            (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))     \
            do_(ncclResult_t, ncclCommFinalize,                                                   \
                (ncclComm_t comm)) do_(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))          \
                do_(ncclResult_t, ncclCommAbort, (ncclComm_t comm)) do_(                          \
                    ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * state)) \
                    do_(const char *, ncclGetErrorString, (ncclResult_t result))                  \
                        do_(const char *, ncclGetLastError, (ncclComm_t comm))                    \
                            do_(ncclResult_t, ncclAllGather,                                      \
                                (const void *send, void *recv, size_t count, ncclDataType_t type, \
                                 ncclComm_t comm, ncclStream_t stream))                           \
                                do_(ncclResult_t, ncclSend,                                       \
                                    (const void *send, size_t count, ncclDataType_t type,         \
                                     int peer, ncclComm_t comm, ncclStream_t stream))             \
                                    do_(ncclResult_t, ncclRecv,                                   \
                                        (void *recv, size_t count, ncclDataType_t type, int peer, \
                                         ncclComm_t comm, ncclStream_t stream))                   \
                                        do_(ncclResult_t, ncclGroupStart, (void))                 \
                                            do_(ncclResult_t, ncclGroupEnd, (void))

/* A library for the emulated GPU, as in the tests, has this symbol. */
#define NCCL_EMULATED "zshard_nccl_emulated"

#endif
