/*
 * kern.h - kernels: the model's computations on a device other than matrix products.
 *
 * MODEL. A kernel is a struct: what to do, on which arrays. Rows are the tokens of a micro-batch.
 * The residual stream and all gradients that are kept are fp32; "of the dtype" are weights and what
 * goes through matrix products: fp32, bf16 or fp16. Whatever is summed is summed in fp32 (losses:
 * in double), in an order that depends on the sizes alone: no atomics, the same bits each time.
 *
 * One source (kern_priv.h) is compiled by nvcc for the device (kern.cu), and by the C compiler for
 * the processor (kern.c), where the emulated device runs it.
 *
 * Arrays of one kernel do not overlap but where it says so. "+=" adds to what is there.
 */
#ifndef GPT_KERN_H
#define GPT_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gpt_kern_op {
    GPT_KERN_EMBED = 1,
    GPT_KERN_EMBED_BACK,
    GPT_KERN_POS_BACK,
    GPT_KERN_NORM,
    GPT_KERN_NORM_BACK,
    GPT_KERN_COLS,
    GPT_KERN_COLS_END,
    GPT_KERN_RESIDUAL,
    GPT_KERN_BIAS,
    GPT_KERN_GELU,
    GPT_KERN_GELU_BACK,
    GPT_KERN_SOFTMAX,
    GPT_KERN_SOFTMAX_BACK,
    GPT_KERN_LOSS,
    GPT_KERN_LOSS_SUM,
    GPT_KERN_OP_END
};

enum gpt_dtype_dev { GPT_DEV_F32, GPT_DEV_BF16, GPT_DEV_FP16 };

static inline size_t gpt_dev_bytes(enum gpt_dtype_dev dtype)
{
    return dtype == GPT_DEV_F32 ? 4 : 2;
}

/* The rows are divided into this many pieces, which are summed separately and then added up. */
#define GPT_KERN_SPLITS 64u

/* x[r] = wte[tokens[r]] + wpe[r % seq] */
struct gpt_kern_embed {
    const void *wte, *wpe; /* of the dtype */
    const uint32_t *tokens;
    float *x; /* [rows, cols] */
    uint64_t rows, cols, seq, vocab;
};

/* The gradient of wte as the embedding: which[i] is a token, and its rows are order[first[i]] ..
 * order[first[i + 1] - 1]: dwte[which[i]] += their sum, in that order. */
struct gpt_kern_embed_back {
    const uint32_t *which, *first, *order; /* [n], [n + 1], [rows] */
    const float *dx;                       /* [rows, cols] */
    float *dwte;                           /* [vocab, cols] */
    uint64_t n, rows, cols, vocab;
};

/* dwpe[t] += the sum of dx[m * seq + t] over all m */
struct gpt_kern_pos_back {
    const float *dx;
    float *dwpe; /* [seq, cols] */
    uint64_t rows, cols, seq;
};

/* Layer norm of each row: y = (x - mean) * rstd * w + b. */
struct gpt_kern_norm {
    const float *x;
    const void *w, *b;  /* [cols] of the dtype */
    void *y;            /* [rows, cols] of the dtype */
    float *mean, *rstd; /* [rows], kept for the way back */
    uint64_t rows, cols;
};

/* Layer norm, backward: adds to dx. dw and db are computed by COLS. */
struct gpt_kern_norm_back {
    const float *x;
    const void *w;
    const float *mean, *rstd;
    const void *dy; /* of the dtype */
    float *dx;
    uint64_t rows, cols;
};

/* Sums of columns, in pieces: part[s] of GPT_KERN_SPLITS has those of its rows. With x (which comes
 * with mean and rstd) part_x has the sums of y * (x - mean) * rstd. */
struct gpt_kern_cols {
    const void *y; /* [rows, cols] of the dtype */
    const float *x, *mean, *rstd;
    float *part, *part_x; /* [GPT_KERN_SPLITS, cols] */
    uint64_t rows, cols;
};

/* to += the pieces, in their order */
struct gpt_kern_cols_end {
    const float *part;
    float *to; /* [cols] */
    uint64_t cols;
};

/* to = x + y + b, b for each row. to may be x. */
struct gpt_kern_residual {
    const float *x;
    const void *y, *b; /* of the dtype */
    float *to;
    uint64_t rows, cols;
};

/* y += b, for each row */
struct gpt_kern_bias {
    const void *b;
    void *y; /* [rows, cols], rows `ld` apart; of the dtype */
    uint64_t rows, cols, ld;
};

/* y = gelu(x) */
struct gpt_kern_gelu {
    const void *x;
    void *y; /* of the dtype */
    uint64_t n;
};

/* dx = dy * gelu'(x). dx may be dy. */
struct gpt_kern_gelu_back {
    const void *x, *dy;
    void *dx; /* of the dtype */
    uint64_t n;
};

/* Row r of scores is query r % seq, and sees the keys up to itself: p is their softmax, 0 behind.
 * p may be s where both are fp32. */
struct gpt_kern_softmax {
    const float *s;
    void *p; /* [rows, seq] of the dtype */
    uint64_t rows, seq;
};

/* ds = p * (dp - sum(dp * p)), 0 behind the diagonal. ds may be dp where both are fp32. */
struct gpt_kern_softmax_back {
    const void *p; /* of the dtype */
    const float *dp;
    void *ds; /* of the dtype */
    uint64_t rows, seq;
};

/* Cross-entropy of each row in nats; with dlogits (softmax - onehot) * scale. dlogits may be logits
 * where both are fp32. */
struct gpt_kern_loss {
    const float *logits; /* [rows, vocab] */
    const uint32_t *targets;
    void *dlogits;  /* of the dtype, or NULL */
    double *losses; /* [rows] */
    uint64_t rows, vocab;
    float scale;
};

/* to[0] += sum(losses) * scale */
struct gpt_kern_loss_sum {
    const double *losses;
    double *to;
    uint64_t n;
    double scale;
};

struct gpt_kern {
    enum gpt_kern_op op;
    enum gpt_dtype_dev dtype;
    union {
        struct gpt_kern_embed embed;
        struct gpt_kern_embed_back embed_back;
        struct gpt_kern_pos_back pos_back;
        struct gpt_kern_norm norm;
        struct gpt_kern_norm_back norm_back;
        struct gpt_kern_cols cols;
        struct gpt_kern_cols_end cols_end;
        struct gpt_kern_residual residual;
        struct gpt_kern_bias bias;
        struct gpt_kern_gelu gelu;
        struct gpt_kern_gelu_back gelu_back;
        struct gpt_kern_softmax softmax;
        struct gpt_kern_softmax_back softmax_back;
        struct gpt_kern_loss loss;
        struct gpt_kern_loss_sum loss_sum;
    };
};

/** An array that a kernel uses: where its address stands in the struct. */
struct gpt_kern_use {
    size_t at;
    uint64_t len_bytes;
    bool writes;
};

#define GPT_KERN_USES_MAX 8u

/** Number of teams (kern_priv.h) of a kernel; 0: there is nothing to do. */
uint64_t gpt_kern_teams(const struct gpt_kern *k);

/** Lists the arrays that a kernel uses; a missing one has 0 bytes. Returns their number. */
unsigned gpt_kern_uses(const struct gpt_kern *k, struct gpt_kern_use uses[GPT_KERN_USES_MAX]);

/** Runs a kernel (struct gpt_kern) in host memory. Returns 0. */
int gpt_kern_host(void *kern);

/** Launches it for gpt_kern_teams(); stream is a cudaStream_t. NULL: loads all kernels, once, while
 * nothing runs that loading one later could have to wait for. A cudaError_t, and *ret_text what
 * that is. It is in the plugin of CUDA's devices: zk_gpu_symbol(GPT_KERN_CUDA). */
typedef int gpt_kern_cuda_fn(const struct gpt_kern *k, uint64_t teams, void *stream,
                             const char **ret_text);
#define GPT_KERN_CUDA "gpt_kern_cuda"

#ifdef __cplusplus
}
#endif

#endif
