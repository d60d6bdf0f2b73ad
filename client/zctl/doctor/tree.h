/*
 * tree.h - files of the machine: /proc, /sys, /etc, /dev, and sets of numbers that some contain.
 *
 * Every path is absolute, and read below `root`: "" for this machine, a directory in tests.
 */
#ifndef ZCTL_DOCTOR_TREE_H
#define ZCTL_DOCTOR_TREE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#define TREE_LINE 4096

/** The path below the root. False: it is too long. */
bool tree_path(const char *root, const char *path, char ret[PATH_MAX]);
/** NULL: it cannot be read. */
FILE *tree_open(const char *root, const char *path);
bool tree_stat(const char *root, const char *path, struct stat *ret);
bool tree_exists(const char *root, const char *path);

/** The first line of a file, without its end. False: there is none; ret is "". */
bool tree_line(const char *root, const char *path, char *ret, size_t bytes);
/** The text after `key`, and after blanks and colons, on the line that begins with it. */
bool tree_value(const char *root, const char *path, const char *key, char *ret, size_t bytes);
/** The number on the first line (key NULL), or after a key. */
bool tree_number(const char *root, const char *path, const char *key, uint64_t *ret);

/** A set of numbers, as in "0-3,8". */
#define TREE_SET_MAX 1024u
struct tree_set {
    bool has[TREE_SET_MAX];
};

/** False: the text is not a list. Blanks at its ends are skipped; "" is the empty set. */
bool tree_set(const char *text, struct tree_set *ret);
/** The first number that is in `a` and not in `b`; -1: there is none. */
int tree_set_outside(const struct tree_set *a, const struct tree_set *b);

#endif
