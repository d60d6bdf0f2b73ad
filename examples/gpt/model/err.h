/*
 * err.h - an error is a code for programs and a sentence for people.
 *
 * What can fail in zgpt returns 0 or a negative errno and leaves a sentence here; only main()
 * prints and exits. (The library keeps a form of its own inside: programs see its public headers
 * only.)
 */
#ifndef GPT_ERR_H
#define GPT_ERR_H

struct gpt_err {
    int code;       /* negative errno; 0: nothing recorded */
    char text[480]; /* one line */
};

/**
 * Records the first failure only and returns code. %m is the text of code. err may be NULL. Bytes
 * that could break a line of a terminal become '?'.
 */
int gpt_fail(struct gpt_err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
