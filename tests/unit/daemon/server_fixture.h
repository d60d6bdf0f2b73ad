/*
 * server_fixture.h - a server on a socket of its own, the core's double behind it, and clients that
 * send bytes. One thread: sf_pump() turns the loop until nothing happens any more.
 */
#ifndef SERVER_FIXTURE_H
#define SERVER_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop_priv.h"
#include "daemon/net/conn_priv.h"
#include "proto/frame.h"
#include "tests/unit/daemon/core_double.h"

/** Of server->most_ns: a turn is as long as it takes. */
#define SF_NO_END (UINT64_MAX / 2)

struct server_fixture {
    struct zsd daemon;
    char dir[32];
    char path[64]; /* of the socket */
};

/** A directory, options and a loop; no server yet. */
void sf_open(struct server_fixture *x);
/** Listens; fails the test when that fails. */
void sf_listen(struct server_fixture *x);
/** Everything down; the directory must be empty but for what `keep` says of it. */
void sf_close(struct server_fixture *x);

/** Turns the loop until a turn has nothing to do. */
void sf_pump(struct server_fixture *x);
/** Turns it, waiting, until *value is wanted; false: not within two seconds. */
bool sf_pump_until(struct server_fixture *x, const unsigned *value, unsigned wanted);

/** Names in the directory. */
unsigned sf_files(const struct server_fixture *x);

/** A connected, non-blocking socket. */
int sf_connect(const struct server_fixture *x);
/** The same by another user, which only root can become. */
int sf_connect_as(const struct server_fixture *x, uid_t uid);
/** The same as sf_connect(), and hello was said and answered. */
int sf_client(struct server_fixture *x);

void sf_send_bytes(int fd, const void *bytes, size_t len);
/** A frame with a body; fds: descriptors that it announces and brings (-1: none). */
void sf_send(int fd, uint8_t kind, uint16_t method, uint64_t tag, const void *body, size_t len);
void sf_send_fds(int fd, const void *bytes, size_t len, const int *fds, unsigned n);
void sf_hello(int fd, uint32_t min, uint32_t max, const char *program);

/** The next frame that the client gets, its body cut to `size` with a NUL behind: 1; 0: nothing is
 * there; -1: the daemon hung up. */
int sf_receive(int fd, struct zp_frame *ret, char *body, size_t size);
/** The same with a descriptor, which the test closes (-1: none came). */
int sf_receive_fd(int fd, struct zp_frame *ret, char *body, size_t size, int *ret_fd);

/** Pumps, and receives a reply with this tag: its code. Fails the test when something else comes.
 */
int sf_reply(struct server_fixture *x, int fd, uint64_t tag);
/** Is the connection alive: a ping is answered. */
void sf_alive(struct server_fixture *x, int fd);
/** It is not: the daemon hung up, and has forgotten it. */
void sf_dead(struct server_fixture *x, int fd);

#endif
