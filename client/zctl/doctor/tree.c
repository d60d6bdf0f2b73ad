#include "client/zctl/doctor/tree.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool tree_path(const char *root, const char *path, char ret[PATH_MAX])
{
    return (size_t)snprintf(ret, PATH_MAX, "%s%s", root, path) < PATH_MAX;
}

FILE *tree_open(const char *root, const char *path)
{
    char full[PATH_MAX];

    return tree_path(root, path, full) ? fopen(full, "re") : NULL;
}

bool tree_stat(const char *root, const char *path, struct stat *ret)
{
    char full[PATH_MAX];

    return tree_path(root, path, full) && stat(full, ret) == 0;
}

bool tree_exists(const char *root, const char *path)
{
    struct stat st;

    return tree_stat(root, path, &st);
}

bool tree_value(const char *root, const char *path, const char *key, char *ret, size_t bytes)
{
    FILE *f = tree_open(root, path);
    size_t len = strlen(key);
    char line[TREE_LINE];
    bool found = false;

    ret[0] = '\0';
    while (f && !found && fgets(line, sizeof(line), f)) {
        const char *p = line + len;

        if (strncmp(line, key, len) != 0 || (len > 0 && !isspace((unsigned char)*p) && *p != ':'))
            continue;
        p += len > 0 ? strspn(p, ": \t") : 0;
        (void)snprintf(ret, bytes, "%.*s", (int)strcspn(p, "\n"), p);
        found = true;
    }
    if (f)
        (void)fclose(f);
    return found;
}

bool tree_line(const char *root, const char *path, char *ret, size_t bytes)
{
    return tree_value(root, path, "", ret, bytes);
}

bool tree_number(const char *root, const char *path, const char *key, uint64_t *ret)
{
    char text[64], *end;
    uint64_t n;

    if (!tree_value(root, path, key ? key : "", text, sizeof(text)))
        return false;
    n = strtoull(text, &end, 10);
    if (end == text)
        return false;
    *ret = n;
    return true;
}

/** Reads digits at *p and moves it past them. */
static bool set_number(const char **p, unsigned *ret)
{
    char *end;
    unsigned long n = strtoul(*p, &end, 10);

    if (!isdigit((unsigned char)**p) || n >= TREE_SET_MAX)
        return false;
    *ret = (unsigned)n;
    *p = end;
    return true;
}

bool tree_set(const char *text, struct tree_set *ret)
{
    const char *p = text + strspn(text, " \t");
    unsigned first, last;

    *ret = (struct tree_set){ .has = { false } };
    while (*p && !isspace((unsigned char)*p)) {
        if (!set_number(&p, &first))
            return false;
        last = first;
        if (*p == '-' && (p++, !set_number(&p, &last)))
            return false;
        for (unsigned i = first; i <= last; i++)
            ret->has[i] = true;
        if (*p == ',')
            p++;
        else if (*p && !isspace((unsigned char)*p))
            return false;
    }
    return true;
}

int tree_set_outside(const struct tree_set *a, const struct tree_set *b)
{
    for (unsigned i = 0; i < TREE_SET_MAX; i++)
        if (a->has[i] && !b->has[i])
            return (int)i;
    return -1;
}
