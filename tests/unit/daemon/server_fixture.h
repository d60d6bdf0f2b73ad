/*
 * server_fixture.h - a server on a socket of its own, with the core's double, and clients that send
 * bytes. There is one thread: sf_pump() turns the loop until nothing more happens.
 */
#ifndef SERVER_FIXTURE_H
#define SERVER_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop_priv.h"
#include "daemon/net/conn_priv.h"
#include "proto/frame.h"
#include "tests/unit/daemon/core_double.h"

/** For server->most_ns: turns are not limited. */
#define SF_NO_END (UINT64_MAX / 2)

struct server_fixture {
    struct zsd daemon;
    char dir[32];
    char path[64]; /* of the socket */
};

/** Makes a directory, options and a loop; no server yet. */
void sf_open(struct server_fixture *x);
/** Listens, or fails the test. */
void sf_listen(struct server_fixture *x);
/** Closes everything; the directory must then be empty. */
void sf_close(struct server_fixture *x);

/** Setup and teardown of tests whose prestate is the fixture: a server that listens; and its end. */
int sf_setup(void **state);
int sf_teardown(void **state);

/** Turns the loop until nothing is left to do. */
void sf_pump(struct server_fixture *x);
/** Turns it, and waits, until *value is wanted; false: not within two seconds. */
bool sf_pump_until(struct server_fixture *x, const unsigned *value, unsigned wanted);

/** The number of files in the directory. */
unsigned sf_files(const struct server_fixture *x);

/** A connected, non-blocking socket. */
int sf_connect(const struct server_fixture *x);
/** The same as another user, which needs root. */
int sf_connect_as(const struct server_fixture *x, uid_t uid);
/** The same as sf_connect(), then hello, which is answered. */
int sf_client(struct server_fixture *x);

void sf_send_bytes(int fd, const void *bytes, size_t len);
/** Sends a frame with a body, and without descriptors. */
void sf_send(int fd, uint8_t kind, uint16_t method, uint64_t tag, const void *body, size_t len);
void sf_send_fds(int fd, const void *bytes, size_t len, const int *fds, unsigned n);
void sf_hello(int fd, uint32_t min, uint32_t max, const char *program);

/** The next frame that the client gets, with its body cut to `size` and NUL-terminated: 1; 0: there
 * is none; -1: the daemon hung up. */
int sf_receive(int fd, struct zp_frame *ret, char *body, size_t size);
/** The same with a descriptor, which the caller closes (-1: none came). */
int sf_receive_fd(int fd, struct zp_frame *ret, char *body, size_t size, int *ret_fd);

/** Pumps until a reply with this tag comes, and returns its code. Anything else fails the test. */
int sf_reply(struct server_fixture *x, int fd, uint64_t tag);
/** Asserts that the connection is alive: a ping is answered. */
void sf_alive(struct server_fixture *x, int fd);
/** Asserts that the daemon has hung up and forgotten the connection. */
void sf_dead(struct server_fixture *x, int fd);

#endif
