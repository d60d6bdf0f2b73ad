/*
 * tcp_socket.h - non-blocking sockets with a deadline, and their addresses: tcp_socket.c. Errors
 * are negative errnos, without a message.
 */
#ifndef ZC_TCP_SOCKET_H
#define ZC_TCP_SOCKET_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define ZC_TCP_NAME_BYTES 64

/* An address in the form that ranks exchange. */
struct zc_tcp_address {
    uint16_t family, port;
    uint32_t scope;
    unsigned char bytes[16];
};

union zc_tcp_socket_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage storage;
};

/** Waits until fd is ready for `events`: 0 or -ETIMEDOUT. */
int zc_tcp_ready(int fd, short events, uint64_t deadline_ns);
/** Sends or receives all bytes. -ECONNRESET: end of the stream. */
int zc_tcp_move(int fd, void *data, size_t bytes, bool out, uint64_t deadline_ns);
/** Connects, and retries while nothing listens there. Returns the descriptor, or an error. */
int zc_tcp_connect(const union zc_tcp_socket_address *to, uint64_t deadline_ns);
/** Listens; *ret_port is the port. at: NULL for any address and any port. Returns the descriptor,
 * or an error. */
int zc_tcp_listen(int family, const union zc_tcp_socket_address *at, uint32_t *ret_port);
/** Sets options of a connection in use: sends without delay, and detects that the peer's machine is
 * gone. */
void zc_tcp_settle(int fd);
/** Sleeps for a moment, before a retry. */
void zc_tcp_nap(void);

void zc_tcp_address_name(const union zc_tcp_socket_address *a, char out[ZC_TCP_NAME_BYTES]);
bool zc_tcp_address_loopback(const union zc_tcp_socket_address *a);
void zc_tcp_address_set_port(union zc_tcp_socket_address *a, uint32_t port);
void zc_tcp_address_pack(const union zc_tcp_socket_address *a, uint32_t port,
                         struct zc_tcp_address *out);
void zc_tcp_address_unpack(const struct zc_tcp_address *a, union zc_tcp_socket_address *out);

#endif
