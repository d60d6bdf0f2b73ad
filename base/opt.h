/*
 * opt.h - the options of a program: rows of a table, parsed, checked and shown by the same code.
 *
 * MODEL. A row has the name of an option, the values that it allows, and the member of the caller's
 * struct that holds it. Every value is text until zb_opt_set(), whether it comes from the default
 * in the row, the command line or a file. So each value is checked in one place, and all programs
 * reject it with the same message. A table ends with a row without a name.
 *
 * COMMAND LINE. "--name VALUE" and "--name=VALUE"; also "-x VALUE" and "-xVALUE" if the row has a
 * letter, and "-xy VALUE" if x is a flag. Names are not abbreviated. A value that begins with "--" needs the equals sign. If an
 * option is given twice, the last value counts, unless the table says otherwise.
 */
#ifndef ZB_OPT_H
#define ZB_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

#define ZB_OPT_ROWS_MAX 64 /* of a table: bits of zb_opts.given */

enum zb_opt_type {
    ZB_OPT_FLAG,   /* bool: takes no value, sets it to true */
    ZB_OPT_TEXT,   /* const char *: the text itself, which must outlive the struct; not "" */
    ZB_OPT_CHARS,  /* char[]: a copy; "" only where the default is "" */
    ZB_OPT_WORDS,  /* struct zb_opt_words: each use adds one, up to `max` if that is set */
    ZB_OPT_CHOICE, /* uint32_t or an enum: the index of the word in `choices`, plus `min` */
    ZB_OPT_COUNT,  /* uint32_t or uint64_t: decimal digits */
    ZB_OPT_SIZE,   /* the same, with units: base/size.h */
    ZB_OPT_REAL,   /* double */
    ZB_OPT_LARGE,  /* double, with suffix K, M, G (or B), T or P: powers of 1000 */
};

/** Grows by realloc(); free(at) is the caller's. */
struct zb_opt_words {
    const char **at;
    size_t n;
};

struct zb_opt {
    const char *name; /* without leading dashes, words joined by '-' */
    enum zb_opt_type type;
    size_t at, size;  /* of the member: ZB_OPT_AT() */
    const char *arg;  /* what help calls the value; NULL: its choices */
    const char *help; /* NULL: only the usage line shows it */

    const char *def;     /* set by zb_opt_defaults(); NULL: the member is left alone */
    const char *absent;  /* for help: the effect of leaving the option out, if it has no `def` */
    const char *missing; /* for help: "required"; the caller checks it */

    double min, max;     /* of a number; max 0: limited by the member's type only */
    uint64_t multiple;   /* of a whole number; 0: any */
    uint64_t round;      /* a whole number is rounded down to a multiple of this; 0: no rounding */
    double scale;        /* a real number is multiplied by this after its check; 0: not
                            multiplied */
    bool zero;           /* 0 is allowed even if below min */
    const char *word;    /* of a whole number: a word that stands for */
    uint64_t word_value; /* this value */
    const char *choices; /* allowed words of a choice or of chars, separated by blanks */
    const char *list; /* of chars: in a file it may be a list, whose texts are joined with this */
    int (*check)(const char *text, struct zb_err *err); /* of a text that is not "" */

    const char *also; /* another name of the option, which only `help` mentions; NULL: none */
    char letter;      /* 's': "-s" is the same as "--name" */
    bool greedy;      /* ZB_OPT_WORDS: takes all words up to the next option */
};

#define ZB_OPT_AT(type, member) .at = offsetof(type, member), .size = sizeof(((type *)0)->member)

/** A table, and the options given for it on a command line. */
struct zb_opts {
    const struct zb_opt *rows;
    void *values; /* the struct that the rows describe */
    bool once;    /* giving an option twice is an error */
    uint64_t given;
};

/** The row of a name of `len` bytes, or NULL. */
const struct zb_opt *zb_opt_find(const struct zb_opt *rows, const char *name, size_t len);

/** The number of the table's rows. */
size_t zb_opt_count(const struct zb_opt *rows);

/** Whether the option was given. The row must exist. */
bool zb_opt_given(const struct zb_opts *opts, const char *name);

/** Sets every member that has a default. */
void zb_opt_defaults(const struct zb_opt *rows, void *values);

/**
 * Reads one value. `name` is the option as its user wrote it ("--io", "FILE:3: io"): the error
 * message begins with it. `text` of a flag is NULL.
 *
 * @return 0; -EINVAL, or -ENOMEM of ZB_OPT_WORDS: the member is unchanged
 */
int zb_opt_set(const struct zb_opt *o, void *values, const char *text, const char *name,
               struct zb_err *err);

/**
 * Writes the value of a member as a text that zb_opt_set() reads: a whole number of a unit ("64M"),
 * or digits. For chars, choices and whole numbers. False: it was cut to `size` bytes.
 */
bool zb_opt_text(const struct zb_opt *o, const void *values, char *text, size_t size);

/**
 * Reads the words of a command line: argv[0] is the first one, not the program. An option is looked
 * for in the tables from the first to the last.
 *
 * @param ret_words  NULL: every word is an option or its value. Otherwise other words may
 *                   stand anywhere, and all words after "--" count as such. They are moved to the
 *                   front of argv, in order, and *ret_words is their number
 * @return 0; -EINVAL, -ENOMEM: values may have changed
 */
int zb_opt_parse(struct zb_opts *tables, size_t ntables, int argc, char **argv, int *ret_words,
                 struct zb_err *err);

/**
 * Reads a file of NAME = VALUE (opt_file.c has the syntax), where names have '_' for '-'. Its values
 * replace those in the struct. An option may be given once.
 *
 * @param others     options without a row: true skips them, false makes them an error
 * @param ret_given  the rows that the file has, as bits; NULL: not wanted
 * @return 0; -EINVAL, -ENOMEM, or the error of opening it: err has the file, and the line if there
 *         is one; values may have changed
 */
int zb_opt_file(const struct zb_opt *rows, void *values, const char *path, bool others,
                uint64_t *ret_given, struct zb_err *err);

/** Writes `begin` and "[--name ARG] ...", in lines of at most 80 columns. */
void zb_opt_usage(FILE *out, const char *begin, const struct zb_opt *rows);

/** Describes each option, in lines of at most 80 columns. */
void zb_opt_help(FILE *out, const struct zb_opt *rows);

/** Writes words in lines of at most 80 columns, and a newline. All lines are indented; the caller
 * has indented the first. */
void zb_opt_wrap(FILE *out, const char *text, size_t indent);

#endif
