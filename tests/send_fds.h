/*
 * send_fds.h - sends bytes and descriptors in one sendmsg(), as a peer of zp_stream might.
 */
#ifndef SEND_FDS_H
#define SEND_FDS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#define SEND_FDS_MAX 16u

/** True when all bytes were sent. */
static inline bool send_fds(int peer, const void *bytes, size_t len, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * SEND_FDS_MAX)];
    } control = { .bytes = { 0 } };
    struct iovec iov = { (void *)(uintptr_t)bytes, len };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

    if (nfds > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(&control.align), fds, sizeof(int) * nfds);
    }
    return sendmsg(peer, &msg, MSG_NOSIGNAL) == (ssize_t)len;
}

#endif
