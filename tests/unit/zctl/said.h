/*
 * said.h - runs zctl in this process, and keeps what it prints. For tests that compile its main.c.
 */
#ifndef SAID_H
#define SAID_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/zctl/zctl_main.h"
#include "tests/ztest.h"

#define WORDS_MAX 48

/** The output of zctl, and its exit status. */
struct said {
    char *out, *err;
    int status;
};

static inline struct said zctl(const char *line)
{
    char copy[600], *words[WORDS_MAX + 2] = { (char[]){ "zctl" } };
    struct said s = { 0 };
    size_t out_bytes, err_bytes;
    FILE *out = open_memstream(&s.out, &out_bytes), *err = open_memstream(&s.err, &err_bytes);
    int n = 1;

    assert_true(snprintf(copy, sizeof(copy), "%s", line) < (int)sizeof(copy));
    for (char *at = copy, *word; n <= WORDS_MAX && (word = strsep(&at, " ")) != NULL;)
        if (*word)
            words[n++] = word;
    s.status = zctl_main(n, words, out, err);
    (void)fclose(out);
    (void)fclose(err);
    return s;
}

static inline void said_free(struct said *s)
{
    free(s->out);
    free(s->err);
}

#endif
