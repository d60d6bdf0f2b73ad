/*
 * x86.c - the implementations for x86-64 processors, and which processor can run them.
 *
 * Each requires exactly the features that CMakeLists.txt enables for its files. The compiler's
 * run-time support also checks that the operating system saves the registers. Not every compiler's
 * support knows F16C; F16C uses the registers of AVX.
 */
#include <cpuid.h>

#include "kernels/zk_priv.h"

static bool avx2_supported(void)
{
    unsigned a, b, c, d;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool avx512_supported(void)
{
    return avx2_supported() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

const struct zk_ops zk_avx2 = ZK_OPS(avx2, avx2_supported);
const struct zk_ops zk_avx512 = ZK_OPS(avx512, avx512_supported);
