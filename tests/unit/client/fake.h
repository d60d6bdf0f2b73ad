/*
 * fake.h - a fake daemon for tests of the client. It listens on a real Unix socket, answers from
 * its own thread, and misbehaves as a test asks.
 *
 * MODEL. One client at a time. Every frame is logged, then given to the test's function, in the
 * server's thread. If that returns false, the right answer is sent.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/un.h>

#include "proto/codec.h"
#include "proto/stream.h"

#define FAKE_JOB          7u
#define FAKE_READER       11u
#define FAKE_TENSORS      70u /* of unit 0 of a reader */
#define FAKE_TENSORS_PART 32u
#define FAKE_STAGING      65536u
#define FAKE_ARENA        1048576u
#define FAKE_ITEM         4096u /* bytes of a shard's parameters; shard i is at i * FAKE_ITEM */
#define FAKE_LOG_MAX      8192u
#define FAKE_PAGE         8192u
#define FAKE_BLOCK        4096u
#define FAKE_ANY_FRAME    UINT32_MAX

struct fake;

/** True: the function has handled the frame. */
typedef bool fake_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body);

struct fake {
    /* Set before fake_start(). */
    fake_fn *fn;
    void *arg;
    uint32_t hang_up_at; /* hangs up instead of answering this frame, counted from 0 */

    char dir[64], path[108];
    int listener, stop;
    pthread_t thread;
    struct zp_stream *s; /* the thread's */
    struct zp_arena *arena;
    uint64_t note_bytes;
    uint8_t note[65536];

    pthread_mutex_t lock; /* of the log */
    uint32_t nlog;
    struct fake_entry {
        struct zp_frame frame;
        uint8_t *body;
    } log[FAKE_LOG_MAX];
};

#define FAKE_INIT                    \
    {                                \
        .hang_up_at = FAKE_ANY_FRAME \
    }

void fake_start(struct fake *f);
/** Ends the thread; the log stays. */
void fake_stop(struct fake *f);
/** The same, and frees the log. */
void fake_done(struct fake *f);

/** Sends the right answer. */
void fake_answer(struct fake *f, const struct zp_frame *frame, const uint8_t *body);
/* Other answers, for test functions. fd -1: none. */
void fake_reply(struct fake *f, const struct zp_frame *frame, const ProtobufCMessage *m, int fd);
void fake_refuse(struct fake *f, const struct zp_frame *frame, int code, const char *text);
void fake_event(struct fake *f, uint16_t event, uint64_t job, uint32_t rank, int code,
                const char *text);
void fake_frame(struct fake *f, struct zp_frame frame, const char *text);
void fake_raw(struct fake *f, const void *bytes, size_t len);
void fake_hang_up(struct fake *f);
/** A memfd of this size with these seals. */
int fake_memfd(uint64_t bytes, int seals);

/** How many frames of a method have come (0: of any method). */
uint32_t fake_count(struct fake *f, unsigned method);
/** The body of the nth frame of a method, from 0, unpacked in an arena of its own, which the caller
 * frees with zp_arena_free(). */
const void *fake_nth(struct fake *f, unsigned method, uint32_t n, struct zp_arena **ret_arena);
/** Waits, some seconds at most, until this many frames of a method have come. */
void fake_wait_count(struct fake *f, unsigned method, uint32_t n);

#endif
