/*
 * lt_priv.h - the little of cuBLASLt's binary interface that lt.c uses, as its header of version 12
 * and 13 has it: so it builds where only the compiler of the toolkit is, and needs the library at
 * run time alone. lt.c compares it with the real header where there is one.
 */
#ifndef ZK_LT_PRIV_H
#define ZK_LT_PRIV_H

#include <stddef.h>
#include <stdint.h>

enum {
    LT_SUCCESS = 0,
    LT_R_32F = 0, /* cudaDataType_t */
    LT_R_16F = 2,
    LT_R_16BF = 14,
    LT_COMPUTE_32F = 68, /* fp32 as it is: TF32 has a number of its own */
    LT_OP_N = 0,
    LT_OP_T = 1,
    LT_DESC_TRANSA = 3, /* int32_t */
    LT_DESC_TRANSB = 4,
    LT_DESC_EPILOGUE = 7,     /* uint32_t */
    LT_DESC_BIAS_POINTER = 8, /* const void * */
    LT_EPILOGUE_BIAS = 4,
    LT_LAYOUT_BATCH_COUNT = 5,  /* int32_t */
    LT_LAYOUT_BATCH_OFFSET = 6, /* int64_t, elements */
    LT_PREF_WORKSPACE = 1,      /* uint64_t */
    LT_PREF_REDUCTION = 3,      /* uint32_t: a mask */
    LT_PREF_ALIGN_A = 5,        /* uint32_t; then B, C, D */
    LT_REDUCTION_COMPUTE_TYPE = 2,
};

typedef struct {
    uint64_t data[8];
} lt_algo;

typedef struct {
    lt_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} lt_found;

/* Return a cublasStatus_t where they return a number; handles and descriptors are pointers. */
#define LT_FUNCTIONS(do_)                                                                        \
    do_(cublasLtCreate, int, (void **handle)) do_(cublasLtDestroy, int, (void *handle)) do_(     \
        cublasLtGetStatusString, const char *,                                                   \
        (int status)) do_(cublasLtMatmulDescCreate, int, (void **desc, int compute, int scale))  \
        do_(cublasLtMatmulDescDestroy, int,                                                      \
            (void *desc)) do_(cublasLtMatmulDescSetAttribute, int,                               \
                              (void *desc, int attribute, const void *value, size_t bytes))      \
            do_(cublasLtMatrixLayoutCreate, int,                                                 \
                (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld))             \
                do_(cublasLtMatrixLayoutDestroy, int, (void *layout)) do_(                       \
                    cublasLtMatrixLayoutSetAttribute, int,                                       \
                    (void *layout, int attribute, const void *value, size_t bytes))              \
                    do_(cublasLtMatmulPreferenceCreate, int,                                     \
                        (void **pref)) do_(cublasLtMatmulPreferenceDestroy, int, (void *pref))   \
                        do_(cublasLtMatmulPreferenceSetAttribute, int,                           \
                            (void *pref, int attribute, const void *value, size_t bytes))        \
                            do_(cublasLtMatmulAlgoGetHeuristic, int,                             \
                                (void *handle, void *desc, void *a, void *b, void *c, void *d,   \
                                 void *pref, int wanted, lt_found *found, int *ret_found))       \
                                do_(cublasLtMatmul, int,                                         \
                                    (void *handle, void *desc, const void *alpha, const void *a, \
                                     void *a_layout, const void *b, void *b_layout,              \
                                     const void *beta, const void *c, void *c_layout, void *d,   \
                                     void *d_layout, const lt_algo *algo, void *workspace,       \
                                     size_t workspace_bytes, void *stream))

#endif
