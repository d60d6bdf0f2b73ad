/*
 * exit.c - one meaning for each exit status, in every program of ours.
 */
#include <errno.h>

#include "client/zclient.h"

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
