/*
 * err.h - an error: a code for programs and a message for people.
 *
 * A function that can fail returns 0 or a negative errno. Below main() nothing prints and nothing
 * exits: the layer that knows most writes the message, and the layer that decides logs it, once.
 */
#ifndef ZB_ERR_H
#define ZB_ERR_H

struct zb_err {
    int code;       /* negative errno; 0: nothing recorded */
    char text[480]; /* one line, no newline; names from outside are quoted and cleaned */
};

/**
 * Records only the first failure. Returns code, so a check fits on one line. %m is the text of
 * code. err may be NULL. Bytes that could break a line of a log or a terminal become '?'.
 */
int zb_fail(struct zb_err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
