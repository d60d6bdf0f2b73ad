/*
 * place.c - where export writes: file names as Hugging Face's, and undoing all of it.
 *
 * Nothing is overwritten. A loader could not tell old files from new ones: if the number of files
 * changed, an old file would remain next to a new index.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/files/files.h"

#define SUFFIX ".safetensors"
#define INDEX  SUFFIX ".index.json"

/** "-00001-of-00002.safetensors" */
static bool is_part(const char *text)
{
    static const char shape[] = "-ddddd-of-ddddd" SUFFIX;

    for (size_t i = 0; i < sizeof(shape); i++)
        if (i < 15 && shape[i] == 'd' ? !isdigit((unsigned char)text[i]) : text[i] != shape[i])
            return false;
    return true;
}

static int place_empty(struct zctl *z, const struct zctl_place *place)
{
    size_t n = strlen(place->stem);
    DIR *folder = opendir(place->folder);
    struct dirent *e;
    int rc = 0;

    if (!folder)
        return zb_fail(&z->err, -errno, "'%s': %m", place->folder);
    while (rc == 0 && (e = readdir(folder)) != NULL)
        if (strncmp(e->d_name, place->stem, n) == 0 &&
            (strcmp(e->d_name + n, SUFFIX) == 0 || strcmp(e->d_name + n, INDEX) == 0 ||
             is_part(e->d_name + n)))
            rc = zb_fail(&z->err, -EEXIST,
                         "'%s/%s' already exists: move it, or export to another folder",
                         place->folder, e->d_name);
    (void)closedir(folder);
    return rc;
}

int zctl_place_open(struct zctl *z, const char *path, struct zctl_place *ret)
{
    size_t n = strlen(path), k = strlen(SUFFIX);
    bool file = n > k && strcmp(path + n - k, SUFFIX) == 0 && path[n - k - 1] != '/';
    char *dir = strdup(path), *base = strdup(path);

    *ret = (struct zctl_place){ 0 };
    if (dir && base && file) {
        ret->folder = strdup(dirname(dir));
        ret->stem = strdup(basename(base));
        if (ret->stem)
            ret->stem[strlen(ret->stem) - k] = '\0';
    } else if (dir && base) {
        ret->folder = strdup(path);
        ret->stem = strdup("model");
    }
    free(dir);
    free(base);
    if (!ret->folder || !ret->stem)
        return zb_fail(&z->err, -ENOMEM, "'%s': %m", path);
    if (!file) {
        ret->made = mkdir(path, 0777) == 0;
        if (!ret->made && errno != EEXIST)
            return zb_fail(&z->err, -errno, "'%s': %m", path);
    }
    return place_empty(z, ret);
}

char *zctl_place_path(const struct zctl_place *place, size_t k, size_t n)
{
    char *path = NULL;
    int rc;

    if (n == 0)
        rc = asprintf(&path, "%s/%s" INDEX, place->folder, place->stem);
    else if (n == 1)
        rc = asprintf(&path, "%s/%s" SUFFIX, place->folder, place->stem);
    else
        rc = asprintf(&path, "%s/%s-%05zu-of-%05zu" SUFFIX, place->folder, place->stem, k + 1, n);
    return rc < 0 ? NULL : path;
}

int zctl_place_written(struct zctl *z, struct zctl_place *place, char *path)
{
    char **grown = realloc(place->written, (place->nwritten + 1) * sizeof(*grown));

    if (!grown) {
        (void)unlink(path);
        free(path);
        return zb_fail(&z->err, -ENOMEM, "%zu files: %m", place->nwritten);
    }
    place->written = grown;
    place->written[place->nwritten++] = path;
    return 0;
}

/** Makes new names in the folder durable. */
static int folder_sync(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;

    if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL)) /* EINVAL: not on this file system */
        rc = -errno;
    zb_close_fd(&fd);
    return rc;
}

int zctl_place_text(struct zctl *z, const char *path, const char *text)
{
    char *tmp = NULL, *copy = strdup(path);
    FILE *out = NULL;
    int rc = 0;

    if (!copy || asprintf(&tmp, "%s.tmp-%ld", path, (long)getpid()) < 0) {
        free(copy);
        return zb_fail(&z->err, -ENOMEM, "'%s': %m", path);
    }
    errno = EIO; /* where the C library does not say */
    out = fopen(tmp, "wxe");
    if (!out || fputs(text, out) == EOF || fflush(out) != 0 || fsync(fileno(out)) < 0 ||
        rename(tmp, path) < 0)
        rc = zb_fail(&z->err, -errno, "'%s': %m", path);
    if (out)
        (void)fclose(out);
    if (rc < 0 && out)
        (void)unlink(tmp);
    if (rc == 0 && (rc = folder_sync(dirname(copy))) < 0) {
        (void)zb_fail(&z->err, rc, "the folder of '%s': %m", path);
        (void)unlink(path);
    }
    free(tmp);
    free(copy);
    return rc;
}

void zctl_place_undo(struct zctl_place *place)
{
    for (size_t i = 0; i < place->nwritten; i++)
        (void)unlink(place->written[i]);
    if (place->made)
        (void)rmdir(place->folder);
}

void zctl_place_done(struct zctl_place *place)
{
    for (size_t i = 0; i < place->nwritten; i++)
        free(place->written[i]);
    free(place->written);
    free(place->folder);
    free(place->stem);
    *place = (struct zctl_place){ 0 };
}
