/*
 * codes.c - the error message and the exit status for a code. All our programs use the same ones.
 */
#include <errno.h>

#include "base/util.h"
#include "client/zclient.h"

#define CODE(code, text)           \
    {                              \
        -code, "-" #code ": " text \
    }

static const struct {
    int rc;
    const char *text;
} codes[] = {
    { 0, "0: done" },
    CODE(EINVAL, "an argument is wrong"),
    CODE(ENOENT, "there is no such job, unit, shard, snapshot or note"),
    CODE(EEXIST, "it exists already"),
    CODE(EPERM, "not allowed"),
    CODE(ENOSPC, "it does not fit"),
    CODE(EDQUOT, "a limit of this user is reached"),
    CODE(EROFS, "what is saved is read-only"),
    CODE(EBUSY, "in use, or not possible now"),
    CODE(EAGAIN, "it was not written yet"),
    CODE(ETIMEDOUT, "the deadline passed"),
    CODE(ESTALE, "this rank was disconnected by a takeover"),
    CODE(EBADMSG, "stored bytes are corrupt"),
    CODE(EIO, "a device failed"),
    CODE(EOWNERDEAD, "a peer rank of the job died"),
    CODE(ECANCELED, "the call was ended"),
    CODE(ENOTCONN, "the daemon is gone"),
    CODE(EPROTO, "the protocol was violated"),
    CODE(EUSERS, "the daemon serves its maximum of clients"),
    CODE(EDQUOT, "a limit of this user is reached"),
    CODE(ENOSYS, "the daemon does not know the request"),
    CODE(EMSGSIZE, "the request is too long"),
    CODE(ENOBUFS, "too many calls are in flight"),
    CODE(ENOMEM, "out of memory"),
    CODE(EMFILE, "out of file descriptors"),
};

const char *zc_strerror(int rc)
{
    for (size_t i = 0; i < ZB_COUNT(codes); i++)
        if (codes[i].rc == rc)
            return codes[i].text;
    return "an unknown code";
}

int zc_exit_code(int rc)
{
    switch (-rc) {
    case 0:
        return 0;
    case EINVAL:
        return ZC_EXIT_USAGE;
    case ENOTCONN:
    case EPROTO:
    case ETIMEDOUT:
    case ECANCELED:
        return ZC_EXIT_DAEMON;
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case EPERM:
    case EACCES:
    case EROFS:
    case ENOSPC:
    case EDQUOT:
    case EBUSY:
    case EUSERS:
    case ESTALE:
    case EOPNOTSUPP:
    case ENODEV:
        return ZC_EXIT_REFUSED;
    case EOWNERDEAD:
        return ZC_EXIT_PEER;
    case EBADMSG:
        return ZC_EXIT_CORRUPT;
    default:
        return ZC_EXIT_OTHER;
    }
}
