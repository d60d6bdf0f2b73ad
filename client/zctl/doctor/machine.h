/*
 * machine.h - the view of the machine that the checks read.
 *
 * MODEL. doctor_look() fills the view: the options of the daemon (a file, or defaults), its systemd
 * unit, users, places of data files, daemons that run, and answers of the kernel and of libraries
 * (probe.h). Checks read it, and files below `root` (tree.h). Nothing of it is changed, on the
 * machine or in the view, after that.
 *
 * THE SERVICE is meant if its unit is installed and no other configuration was named. Then users,
 * limits and directories are those of the unit; otherwise those of a daemon that this user would
 * start in this session.
 */
#ifndef ZCTL_DOCTOR_MACHINE_H
#define ZCTL_DOCTOR_MACHINE_H

#include "base/err.h"
#include "client/zclient.h"
#include "client/zctl/doctor/probe.h"
#include "client/zctl/doctor/tree.h"

#define DOCTOR_AUTO        UINT64_MAX
#define DOCTOR_PLACES_MAX  8u
#define DOCTOR_GROUPS_MAX  64u
#define DOCTOR_DAEMONS_MAX 64u
#define DOCTOR_SOCKETS_MAX 4u
#define DOCTOR_GPUS_MAX    16u

/** The options of zshardd that the checks need. Sizes may be DOCTOR_AUTO. */
struct doctor_conf {
    char socket[108], socket_group[64], data[PATH_MAX], paths[4096], gpu[1024], io[16], cpus[256],
        numa[256];
    uint64_t host_bytes, nvme_bytes;
    char gpu_sizes[256]; /* of gpu_bytes: one for all, or a list */
    uint64_t gpu_bytes;  /* the largest of them */
    uint32_t clients_max;
};

/** The installed unit, with its drop-ins. A text is "" if it is not set. */
struct doctor_unit {
    char path[PATH_MAX]; /* "": not installed */
    char exec[PATH_MAX]; /* ExecStart */
    char config[PATH_MAX];
    char user[64], state[256], memlock[64], nofile[64], memory_max[64], private_devices[16],
        protect_system[16];
    char writable[4096], devices[2048]; /* ReadWritePaths, DeviceAllow: separated by blanks */
};

struct doctor_person {
    bool known;
    char name[64];
    uint32_t uid, gid;
    uint32_t groups[DOCTOR_GROUPS_MAX]; /* of the session, or of the database */
    size_t ngroups;
};

/** A directory for a data file. */
struct doctor_place {
    char path[PATH_MAX];
    char there[PATH_MAX]; /* the nearest directory that exists: path, or above it */
    bool temporary;       /* a daemon would make a directory in it, and remove it */
    bool exists, network; /* network: a remote file system, which is not touched */
    struct stat st;       /* of path, or of `there` */
    bool file;            /* there is a data file, of */
    uint64_t file_bytes;
    char mount[PATH_MAX], type[64], options[512]; /* of the file system */
    char drive[64];                               /* such as nvme0n1; "": unknown */
    char scheduler[128];
    int rotates;         /* -1: unknown */
    uint64_t free_bytes; /* UINT64_MAX: unknown */
    enum { DIRECT_UNKNOWN, DIRECT_YES, DIRECT_NO } direct;
};

/** A path where clients look for the daemon. rc is that of zc_open(). */
struct doctor_socket {
    char path[PATH_MAX]; /* below the root */
    bool by_name;        /* --socket or $ZSHARD_SOCKET */
    int rc;
    bool file; /* there is one */
    uint32_t uid;
    char text[256]; /* the error message, or the server's name */
};

/** A process zshardd. host_bytes is 0 if it is not known: `automatic`. */
struct doctor_process {
    uint32_t pid;
    bool automatic;
    bool configured; /* it was started with the file that doctor reads */
    uint64_t host_bytes;
};

/** The daemon that answers. */
struct doctor_daemon {
    bool answers;
    char server[64];
    uint32_t pid; /* 0: in another namespace of processes */
    uint64_t host_bytes;
};

struct doctor_machine {
    const char *root;
    uint64_t began_ns; /* when doctor_look() was called */

    char conf_path[PATH_MAX]; /* "": no file, defaults */
    bool conf_named;          /* --config or --data was given */
    struct doctor_conf conf;
    struct zb_err conf_err; /* code 0: the file was read */
    struct doctor_unit unit;
    bool service;

    struct doctor_person session, daemon_user;
    uint64_t memory, available; /* of the machine; 0: unknown */
    uint64_t host_bytes;        /* that the daemon takes, or would take */

    struct doctor_place places[DOCTOR_PLACES_MAX];
    size_t nplaces;

    struct doctor_socket sockets[DOCTOR_SOCKETS_MAX];
    size_t nsockets;
    struct doctor_daemon daemon;
    struct doctor_process processes[DOCTOR_DAEMONS_MAX];
    size_t nprocesses;

    bool gpu;      /* an NVIDIA GPU is there, or wanted (gpu_bytes) */
    bool gpu_seen; /* it is there: on the bus, or its driver is loaded */
    struct doctor_answers answers;
};

/** What was named on the command line; NULL: nothing. */
struct doctor_given {
    const char *config, *data, *socket;
};

/** Fills the view; blocks for less than two seconds. */
void doctor_look(struct doctor_machine *m, const char *root, const struct doctor_given *given);

/* ---- conf.c, unit.c, people.c, places.c, daemons.c: its parts, in this order */

void doctor_unit(struct doctor_machine *m);
void doctor_conf(struct doctor_machine *m, const struct doctor_given *given);
/** Reads host_bytes of a file of options (DOCTOR_AUTO if it has none). False: it cannot be read. */
bool doctor_conf_host(const char *path, uint64_t *ret);
void doctor_people(struct doctor_machine *m);
void doctor_places(struct doctor_machine *m);
void doctor_daemons(struct doctor_machine *m, const struct doctor_given *given);

/** A user of the database. False: there is none. */
bool doctor_person(const char *root, const char *name, struct doctor_person *ret);
/** A group of the database. *ret_member: whether it has this user. False: there is none. */
bool doctor_group(const char *root, const char *group, const struct doctor_person *user,
                  uint32_t *ret_gid, bool *ret_member);
bool doctor_person_in(const struct doctor_person *p, uint32_t gid);
/** Whether the mode of a file gives this user all of these rights, such as S_IROTH | S_IWOTH. */
bool doctor_person_may(const struct doctor_person *p, const struct stat *st, mode_t rights);

#endif
