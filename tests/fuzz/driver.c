/*
 * driver.c - runs a fuzz target without libFuzzer: the seeds, then mutations of them from a fixed
 * random seed, so that every run is the same. With arguments it runs those files instead. An input
 * that aborts is left in ./fuzz-crash.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "tests/fuzz/zfuzz.h"

#define RUN_NS \
    UINT64_C(2000000000) /* ends by time: a slow build tries fewer, in the same order \
                          */
#define MUTATE_MAX 6

static uint8_t input[ZFUZZ_INPUT_MAX];
static size_t input_bytes;
static uint64_t random_state = 20240601;

static uint64_t draw(uint64_t below)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

static void on_abort(int sig)
{
    int fd = open("fuzz-crash", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd >= 0 && write(fd, input, input_bytes) == (ssize_t)input_bytes)
        (void)close(fd);
    (void)signal(sig, SIG_DFL);
    (void)raise(sig);
}

static void insert(size_t at, const uint8_t *bytes, size_t n)
{
    n = zb_min_u64(n, ZFUZZ_INPUT_MAX - input_bytes);
    memmove(input + at + n, input + at, input_bytes - at);
    memcpy(input + at, bytes, n);
    input_bytes += n;
}

static void mutate(void)
{
    static const uint8_t odd[] = { 0, 1, 2, 4, 5, 0x7f, 0x80, 0xfe, 0xff, '\n' };
    uint8_t piece[64];
    size_t at = draw(input_bytes + 1);
    size_t n = 1 + draw(sizeof(piece));

    switch (draw(6)) {
    case 0: /* a bit */
        if (at < input_bytes)
            input[at] ^= (uint8_t)(1u << draw(8));
        break;
    case 1: /* a byte */
        if (at < input_bytes)
            input[at] = draw(2) ? odd[draw(sizeof(odd))] : (uint8_t)draw(256);
        break;
    case 2: /* remove some bytes */
        n = zb_min_u64(n, input_bytes - at);
        memmove(input + at, input + at + n, input_bytes - at - n);
        input_bytes -= n;
        break;
    case 3: /* repeat some bytes */
        n = zb_min_u64(n, input_bytes - at);
        memcpy(piece, input + at, n);
        insert(draw(input_bytes + 1), piece, n);
        break;
    case 4: /* insert random bytes */
        for (size_t i = 0; i < n; i++)
            piece[i] = (uint8_t)draw(256);
        insert(at, piece, n);
        break;
    case 5: /* cut */
        input_bytes = at;
        break;
    }
}

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");

    if (!f) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    input_bytes = fread(input, 1, sizeof(input), f);
    (void)fclose(f);
    return LLVMFuzzerTestOneInput(input, input_bytes);
}

int main(int argc, char **argv)
{
    uint64_t until = zb_now_ns() + RUN_NS;
    unsigned seeds = 0;
    uint64_t runs = 0;
    int rc = 0;

    if (argc > 1) {
        for (int i = 1; i < argc; i++)
            rc |= run_file(argv[i]);
        return rc;
    }
    (void)signal(SIGABRT, on_abort);
    (void)signal(SIGSEGV, on_abort);
    while ((input_bytes = zfuzz_seed(seeds, input, sizeof(input))) > 0) {
        (void)LLVMFuzzerTestOneInput(input, input_bytes);
        seeds++;
    }
    zfuzz_require(seeds > 0);
    do {
        input_bytes = zfuzz_seed((unsigned)draw(seeds), input, sizeof(input));
        for (uint64_t n = 1 + draw(MUTATE_MAX); n > 0; n--)
            mutate();
        (void)LLVMFuzzerTestOneInput(input, input_bytes);
        runs++;
    } while (zb_now_ns() < until);
    printf("%u seeds, %llu mutations\n", seeds, (unsigned long long)runs);
    return 0;
}
