#include "tests/ztest.h"

#include "daemon/config/config.h"
#include "daemon/startup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/disk/datadir.h"
#include "daemon/disk/paths.h"
#include "daemon/run/compute.h"
#include "tests/unit/daemon/core_double.h"

static char dir[32];
static struct zsd daemon_;

static unsigned threads_at_rest; /* a sanitizer has some of its own */

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static unsigned next;
    char *p = path[next++ % 4];

    (void)snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static unsigned names_in(const char *path)
{
    DIR *d = opendir(path);
    unsigned n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    assert_int_equal(closedir(d), 0);
    return n;
}

static unsigned open_files(void)
{
    return names_in("/proc/self/fd");
}

/** Without those of io_uring, which the kernel may end at any time. */
static unsigned threads(void)
{
    DIR *d = opendir("/proc/self/task");
    unsigned n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[300], name[32] = "";
        FILE *f;

        (void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
        f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f)
            continue;
        n += fgets(name, sizeof(name), f) && strncmp(name, "iou-", 4) != 0;
        (void)fclose(f);
    }
    assert_int_equal(closedir(d), 0);
    return n;
}

static void configure(void)
{
    char *argv[] = { (char *)(uintptr_t) "zshardd", NULL };
    struct zsd_config *c = &daemon_.config;
    struct zb_err err = { 0 };

    memset(&daemon_, 0, sizeof(daemon_));
    memset(&core_double, 0, sizeof(core_double));
    zb_log_set_level(ZB_LOG_ERROR);
    assert_int_equal(zsd_config_load(c, 1, argv, NULL, &err), 0);
    (void)snprintf(c->socket, sizeof(c->socket), "%s", in_dir("s"));
    (void)snprintf(c->data, sizeof(c->data), "%s", in_dir("data"));
    c->nvme_bytes = 2 * ZB_MIB;
    c->threads = 2;
}

static int setup(void **state)
{
    (void)state;
    (void)strcpy(dir, "/tmp/zshard-start-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    (void)unsetenv("STATE_DIRECTORY");
    (void)unsetenv("TMPDIR");
    configure();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(in_dir("data/" ZSD_DATA_FILE));
    (void)rmdir(in_dir("data"));
    return rmdir(dir);
}

static void up(void)
{
    struct zb_err err = { 0 };

    if (zsd_startup(&daemon_, &err) < 0)
        fail_msg("%s", err.text);
}

/* ---- it starts */

static void everything(void **state)
{
    unsigned files = open_files();
    struct stat st;

    (void)state;
    up();
    assert_int_equal(core_double.news, 1);
    assert_non_null(daemon_.kernels);
    assert_int_equal(zsd_compute_threads(daemon_.compute), 2);
    assert_non_null(daemon_.engine);
    assert_int_equal(daemon_.engine_base, ZN_DATA_START);
    assert_non_null(daemon_.loop);
    assert_non_null(daemon_.server);
    assert_true(daemon_.started_ns > 0);
    assert_true(daemon_.config.host_bytes != ZSD_AUTO);
    assert_true(daemon_.config.host_bytes > 0 && daemon_.config.host_bytes % 4096 == 0);
    assert_string_equal(daemon_.config.data, in_dir("data"));
    assert_int_equal(stat(in_dir("data"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(stat(in_dir("data/" ZSD_DATA_FILE), &st), 0);
    assert_int_equal(st.st_size, 2 * ZB_MIB);
    zsd_shutdown(&daemon_);
    assert_int_equal(core_double.frees, 1);
    assert_int_equal(open_files(), files);
    assert_int_equal(threads(), threads_at_rest);
    assert_int_equal(names_in(dir), 1); /* the data stays */
    zsd_shutdown(&daemon_);             /* nothing is running: nothing happens */
}

static void two_starts_differ(void **state)
{
    uint8_t first[16];

    (void)state;
    up();
    memcpy(first, daemon_.instance, sizeof(first));
    zsd_shutdown(&daemon_);
    up();
    assert_memory_not_equal(first, daemon_.instance, sizeof(first));
    zsd_shutdown(&daemon_);
}

static void no_nvme_tier(void **state)
{
    (void)state;
    daemon_.config.nvme_bytes = 0;
    up();
    assert_null(daemon_.engine);
    assert_int_equal(names_in(in_dir("data")), 0);
    zsd_shutdown(&daemon_);
}

/** The file keeps its size. */
static void auto_size(void **state)
{
    struct statvfs vfs;
    uint64_t half;

    (void)state;
    up();
    zsd_shutdown(&daemon_);
    daemon_.config.nvme_bytes = ZSD_AUTO;
    up();
    assert_int_equal(daemon_.config.nvme_bytes, 2 * ZB_MIB);
    zsd_shutdown(&daemon_);

    assert_int_equal(unlink(in_dir("data/" ZSD_DATA_FILE)), 0);
    assert_int_equal(statvfs(dir, &vfs), 0);
    half = (uint64_t)vfs.f_bavail * vfs.f_frsize / 2;
    daemon_.config.nvme_bytes = ZSD_AUTO;
    up();
    if (half > 5 * ZB_GIB)
        assert_true(daemon_.config.nvme_bytes == 4 * ZB_GIB);
    else
        assert_true(daemon_.config.nvme_bytes <= half);
    zsd_shutdown(&daemon_);
}

static void temporary_directory(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("tmp"), 0700), 0);
    assert_int_equal(setenv("TMPDIR", in_dir("tmp"), 1), 0);
    daemon_.config.data[0] = '\0';
    up();
    assert_null(zsd_datadir_catalog(daemon_.datadir));
    assert_memory_equal(daemon_.config.data, in_dir("tmp/zshard-"), strlen(in_dir("tmp/zshard-")));
    assert_int_equal(names_in(in_dir("tmp")), 1);
    assert_int_equal(names_in(daemon_.config.data), 0); /* the data file has no name any more */
    assert_int_equal(zn_info(daemon_.engine)->size_bytes, 2 * ZB_MIB);
    zsd_shutdown(&daemon_);
    assert_int_equal(rmdir(in_dir("tmp")), 0); /* it is empty */
}

static void state_directory(void **state)
{
    (void)state;
    assert_int_equal(setenv("STATE_DIRECTORY", in_dir("data"), 1), 0);
    daemon_.config.data[0] = '\0';
    up();
    assert_string_equal(daemon_.config.data, in_dir("data"));
    assert_non_null(zsd_datadir_catalog(daemon_.datadir));
    zsd_shutdown(&daemon_);
    assert_int_equal(names_in(in_dir("data")), 1);
}

/** Without O_DIRECT: it works nevertheless, and logs that. */
static void on_tmpfs(void **state)
{
    char path[] = "/dev/shm/zshard-start-XXXXXX", file[64];
    struct statfs fs;

    (void)state;
    if (!mkdtemp(path) || statfs(path, &fs) < 0 || fs.f_type != 0x01021994)
        ztest_skip("there is no tmpfs");
    (void)snprintf(daemon_.config.data, sizeof(daemon_.config.data), "%s", path);
    up();
    assert_false(zn_info(daemon_.engine)->direct);
    assert_true(zn_info(daemon_.engine)->why_buffered[0] != '\0');
    zsd_shutdown(&daemon_);
    (void)snprintf(file, sizeof(file), "%s/" ZSD_DATA_FILE, path);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(path), 0);
}

static rlim_t descriptors(void)
{
    struct rlimit r;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    return r.rlim_cur;
}

/** As many as clients_max may need, but never fewer than before. */
static void descriptors_for_clients(void **state)
{
    struct rlimit before, low;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    if (before.rlim_max < 1024)
        ztest_skip("the limit of descriptors is too low to see it");
    low = before;
    low.rlim_cur = 128;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    daemon_.config.clients_max = 10;
    up();
    assert_int_equal(descriptors(), 10 * 4 + 512);
    zsd_shutdown(&daemon_);
    low.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    up();
    assert_int_equal(descriptors(), 1000);
    zsd_shutdown(&daemon_);
    daemon_.config.clients_max = UINT32_MAX; /* more than the system has: it starts nevertheless */
    up();
    assert_true(descriptors() == before.rlim_max);
    zsd_shutdown(&daemon_);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* ---- it does not */

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
}

static int held = -1; /* held by a case while the daemon tries to start */

static void no_parent(void)
{
    (void)strcpy(daemon_.config.data, in_dir("no/data"));
}

static void data_is_a_file(void)
{
    put(in_dir("data"), "mine");
}

static void data_is_in_use(void)
{
    assert_int_equal(mkdir(in_dir("data"), 0700), 0);
    held = open(in_dir("data"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(held, LOCK_EX), 0);
}

static void data_file_is_in_use(void)
{
    assert_int_equal(mkdir(in_dir("data"), 0700), 0);
    put(in_dir("data/" ZSD_DATA_FILE), "");
    held = open(in_dir("data/" ZSD_DATA_FILE), O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(held, LOCK_EX), 0);
}

static void data_file_is_not_ours(void)
{
    assert_int_equal(mkdir(in_dir("data"), 0700), 0);
    put(in_dir("data/" ZSD_DATA_FILE), "mine");
}

static void data_is_anothers(void)
{
    assert_int_equal(mkdir(in_dir("data"), 0700), 0);
    if (chown(in_dir("data"), 65534, 65534) < 0) /* not root: this is refused, too */
        assert_int_equal(chmod(in_dir("data"), 0777), 0);
}

static void data_is_everybodys(void)
{
    assert_int_equal(mkdir(in_dir("data"), 0700), 0);
    assert_int_equal(chmod(in_dir("data"), 0777), 0);
}

static void data_file_is_a_link(void)
{
    assert_int_equal(mkdir(in_dir("data"), 0700), 0);
    assert_int_equal(symlink(in_dir("data/elsewhere"), in_dir("data/" ZSD_DATA_FILE)), 0);
}

static void data_file_is_larger(void)
{
    up();
    zsd_shutdown(&daemon_);
    configure();
    daemon_.config.nvme_bytes = ZB_MIB;
}

static void more_than_there_is(void)
{
    struct statvfs vfs;

    assert_int_equal(statvfs(dir, &vfs), 0);
    daemon_.config.nvme_bytes = ((uint64_t)vfs.f_bavail * vfs.f_frsize + 64 * ZB_GIB) / 4096 * 4096;
}

static void no_temporary_place(void)
{
    assert_int_equal(setenv("TMPDIR", in_dir("no"), 1), 0);
    daemon_.config.data[0] = '\0';
}

static void temporary_place_is_too_long(void)
{
    char path[PATH_MAX];

    memset(path, 'a', sizeof(path));
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(setenv("TMPDIR", path, 1), 0);
    daemon_.config.data[0] = '\0';
}

static void unknown_kernels(void)
{
    (void)strcpy(daemon_.config.kernels, "sse");
}

static void unknown_io(void)
{
    (void)strcpy(daemon_.config.io, "aio");
}

static void no_cpus(void)
{
    (void)strcpy(daemon_.config.cpus, "1023");
}

static void no_core(void)
{
    core_double.new_rc = -ENOSPC;
}

static void no_socket(void)
{
    (void)strcpy(daemon_.config.socket, in_dir("no/s"));
}

static void socket_is_in_use(void)
{
    put(in_dir("s.lock"), "");
    held = open(in_dir("s.lock"), O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(held, LOCK_EX), 0);
}

static void no_group(void)
{
    (void)strcpy(daemon_.config.socket_group, "no-such-group");
}

static void path_twice(void)
{
    (void)snprintf(daemon_.config.paths, sizeof(daemon_.config.paths), "%s", in_dir("data"));
}

static void path_no_parent(void)
{
    (void)snprintf(daemon_.config.paths, sizeof(daemon_.config.paths), "%s", in_dir("no/where"));
}

static void paths_alone(void)
{
    path_no_parent();
    daemon_.config.nvme_bytes = 0;
}

static const struct {
    const char *name;
    void (*prepare)(void);
    int rc;
    const char *says;
} failures[] = {
    { "no parent", no_parent, -ENOENT, "there is no directory to make it in" },
    { "data is a file", data_is_a_file, -ENOTDIR, "/data'" },
    { "data in use", data_is_in_use, -EBUSY, "is in use by another daemon" },
    { "data file in use", data_file_is_in_use, -EBUSY, "is in use by another daemon" },
    { "data file not ours", data_file_is_not_ours, -EMEDIUMTYPE, ZSD_DATA_FILE },
    { "data is another user's", data_is_anothers, -EKEYREJECTED, "could replace what is saved" },
    { "data is everybody's", data_is_everybodys, -EKEYREJECTED, "has mode 0777" },
    { "data file is a link", data_file_is_a_link, -ELOOP, "is a symbolic link" },
    { "data file larger", data_file_is_larger, -EINVAL, "is never cut" },
    { "no room", more_than_there_is, -ENOSPC, "the file system has" },
    { "no temporary place", no_temporary_place, -ENOENT, "a temporary data directory in" },
    { "temporary place too long", temporary_place_is_too_long, -ENAMETOOLONG, "too long" },
    { "unknown kernels", unknown_kernels, -ENOENT, "unknown kernels 'sse'" },
    { "unknown io", unknown_io, -EINVAL, "I/O engine 'aio'" },
    { "a further path in use", path_twice, -EBUSY, "is in use by another daemon" },
    { "a further path without a parent", path_no_parent, -ENOENT, "no directory to make it in" },
    { "further paths and no data file", paths_alone, -EINVAL, "nvme_bytes is 0" },
    { "no cpus", no_cpus, -EINVAL, "may use none of the CPUs" },
    { "no core", no_core, -ENOSPC, "the core's double" },
    { "no socket", no_socket, -ENOENT, "its directory does not exist" },
    { "socket in use", socket_is_in_use, -EADDRINUSE, "is in use by another daemon" },
    { "no group", no_group, -EINVAL, "there is no group" },
};

static void failures_leave_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(failures); i++) {
        struct zb_err err = { 0 };
        unsigned files, left;
        char command[128];
        int rc;

        (void)unsetenv("TMPDIR");
        configure();
        failures[i].prepare();
        core_double.news = core_double.frees = 0;
        files = open_files();
        left = names_in(dir);
        rc = zsd_startup(&daemon_, &err);
        if (rc != failures[i].rc || !strstr(err.text, failures[i].says))
            fail_msg("%s: got %d, '%s'", failures[i].name, rc, err.text);
        if (open_files() != files || threads() != threads_at_rest)
            fail_msg("%s: %u descriptors, %u before; %u threads", failures[i].name, open_files(),
                     files, threads());
        if (daemon_.datadir || daemon_.engine || daemon_.compute || daemon_.core || daemon_.loop ||
            daemon_.server)
            fail_msg("%s: something is still up", failures[i].name);
        assert_true(names_in(dir) <= left + 1); /* the data directory */
        assert_int_equal(core_double.news, core_double.frees);
        zb_close_fd(&held);
        (void)snprintf(command, sizeof(command), "rm -rf %s/*", dir);
        assert_int_equal(system(command), 0);
    }
    (void)unsetenv("TMPDIR");
}

static void paths_set(const char *first, const char *second)
{
    (void)snprintf(daemon_.config.paths, sizeof(daemon_.config.paths), "%s:%s", in_dir(first),
                   in_dir(second));
}

/* Each path has its file, which the core measures; contents stay; the order is kept. */
static void several_paths(void **state)
{
    struct zb_err err = { 0 };
    char text[64] = "", command[128];
    int fd;

    (void)state;
    configure();
    daemon_.config.nvme_bytes = 4 * ZB_MIB;
    paths_set("b", "c");
    if (zsd_startup(&daemon_, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(daemon_.nmore, 2);
    assert_true(daemon_.measures);
    assert_int_equal(zn_info(daemon_.more[1].engine)->size_bytes, 4 * ZB_MIB);
    zsd_shutdown(&daemon_);
    assert_int_equal(access(in_dir("c/" ZSD_DATA_FILE), F_OK), -1); /* no store has used it */

    configure();
    daemon_.config.nvme_bytes = 4 * ZB_MIB;
    paths_set("b", "c");
    assert_int_equal(zsd_startup(&daemon_, &err), 0);
    zsd_paths_keep(&daemon_); /* as a store that opens */
    zsd_shutdown(&daemon_);
    fd = open(in_dir("c/" ZSD_DATA_FILE), O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "committed", 9, ZN_DATA_START + 12345), 9);

    configure();
    daemon_.config.nvme_bytes = 4 * ZB_MIB;
    assert_int_equal(rename(in_dir("b"), in_dir("b3")), 0);
    paths_set("c", "b3");
    if (zsd_startup(&daemon_, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(daemon_.nmore, 2);
    assert_string_equal(zsd_path_folder(&daemon_, 1), in_dir("b3"));
    assert_string_equal(zsd_path_folder(&daemon_, 2), in_dir("c"));
    zsd_shutdown(&daemon_);

    configure(); /* without number 2 */
    daemon_.config.nvme_bytes = 4 * ZB_MIB;
    (void)snprintf(daemon_.config.paths, sizeof(daemon_.config.paths), "%s", in_dir("c"));
    if (zsd_startup(&daemon_, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(daemon_.nmore, 2);
    assert_true(zn_is_absent(daemon_.more[0].engine));
    assert_string_equal(zsd_path_folder(&daemon_, 1), "");
    zsd_shutdown(&daemon_);

    configure(); /* a new one gets that number */
    daemon_.config.nvme_bytes = 4 * ZB_MIB;
    paths_set("c", "d");
    assert_int_equal(zsd_startup(&daemon_, &err), 0);
    assert_string_equal(zsd_path_folder(&daemon_, 1), in_dir("d"));
    assert_false(zn_is_absent(daemon_.more[0].engine));
    zsd_paths_keep(&daemon_);
    zsd_shutdown(&daemon_);

    configure();
    daemon_.config.nvme_bytes = 4 * ZB_MIB;
    paths_set("d", "b3");
    assert_int_equal(zsd_startup(&daemon_, &err), -EINVAL);
    assert_non_null(strstr(err.text, "is number 2, as another one is"));
    assert_int_equal(daemon_.nmore, 0);
    assert_int_equal(pread(fd, text, 9, ZN_DATA_START + 12345), 9);
    assert_string_equal(text, "committed");
    assert_int_equal(close(fd), 0);
    (void)snprintf(command, sizeof(command), "rm -rf %s/*", dir);
    assert_int_equal(system(command), 0);
}

static void what_is_not_ours_is_not_touched(void **state)
{
    struct zb_err err = { 0 };
    char text[8] = "";
    int fd;

    (void)state;
    data_file_is_not_ours();
    assert_int_equal(zsd_startup(&daemon_, &err), -EMEDIUMTYPE);
    fd = open(in_dir("data/" ZSD_DATA_FILE), O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, text, sizeof(text)), 4);
    assert_string_equal(text, "mine");
    assert_int_equal(close(fd), 0);
}

/** The directory belongs to another user, and we have no access. */
static void a_directory_that_we_may_not_write(void **state)
{
    struct zb_err err = { 0 };
    int rc;

    (void)state;
    if (geteuid() != 0)
        ztest_skip("only root can become another user");
    assert_int_equal(mkdir(in_dir("data"), 0755), 0);
    assert_int_equal(chmod(dir, 0755), 0);
    assert_int_equal(seteuid(65534), 0);
    rc = zsd_startup(&daemon_, &err);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(rc, -EACCES);
    assert_non_null(strstr(err.text, "user 65534 may not write there; is its drive mounted?"));
}

/* ---- file systems made for the test, in a child with mounts of its own */

static bool mounts_of_our_own(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mkdir(in_dir("data"), 0700) == 0 &&
           mount("zshard-test", in_dir("data"), "tmpfs", 0, "size=3m,mode=0700") == 0;
}

#define CHILD_SKIPPED 77

/** Reports on standard error what was not as expected. */
static int child_expects(const char *what, int wanted, const char *says)
{
    struct zb_err err = { 0 };
    int rc = zsd_startup(&daemon_, &err);

    if (rc == wanted && strstr(err.text, says))
        return 0;
    (void)fprintf(stderr, "%s: got %d, '%s'\n", what, rc, err.text);
    return 1;
}

static int child_full(void)
{
    int fd;

    if (!mounts_of_our_own())
        return CHILD_SKIPPED;
    daemon_.config.nvme_bytes = 4 * ZB_MIB;
    if (child_expects("too small", -ENOSPC, "no room for 4.00 MiB") || names_in(in_dir("data")) > 1)
        return 1;
    configure();
    fd = open(in_dir("data/other"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (posix_fallocate(fd, 0, 2 * (off_t)ZB_MIB) != 0 || close(fd) != 0)
        return 1;
    daemon_.config.nvme_bytes = ZSD_AUTO;
    return child_expects("full, and nobody said how much", -ENOSPC, "its file system is full");
}

static int child_read_only(void)
{
    if (!mounts_of_our_own())
        return CHILD_SKIPPED;
    if (mount(NULL, in_dir("data"), NULL, MS_REMOUNT | MS_RDONLY, "") < 0)
        return CHILD_SKIPPED;
    if (child_expects("read-only", -EROFS, "mounted read-only"))
        return 1;
    configure();
    (void)strcpy(daemon_.config.data, in_dir("data/inside"));
    return child_expects("a new one in a read-only place", -EROFS, "mounted read-only");
}

static void in_child(int (*body)(void))
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0)
        _exit(body());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_SKIPPED)
        ztest_skip("we may not mount here");
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_full_file_system(void **state)
{
    (void)state;
    in_child(child_full);
}

static void a_read_only_file_system(void **state)
{
    (void)state;
    in_child(child_read_only);
}

/** libuv keeps two descriptors for signals once the first loop exists. */
static int first_loop(void **state)
{
    struct zb_err err = { 0 };

    (void)state;
    if (setup(state) < 0 || zsd_startup(&daemon_, &err) < 0)
        return -1;
    zsd_shutdown(&daemon_);
    threads_at_rest = threads();
    return teardown(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(everything),
        TEST(two_starts_differ),
        TEST(no_nvme_tier),
        TEST(auto_size),
        TEST(temporary_directory),
        TEST(state_directory),
        TEST(on_tmpfs),
        TEST(descriptors_for_clients),
        TEST(failures_leave_nothing),
        TEST(several_paths),
        TEST(what_is_not_ours_is_not_touched),
        TEST(a_directory_that_we_may_not_write),
        TEST(a_full_file_system),
        TEST(a_read_only_file_system),
    };

    return cmocka_run_group_tests(tests, first_loop, NULL);
}
