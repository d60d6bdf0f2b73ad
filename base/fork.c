#include "base/fork.h"

#include <pthread.h>

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static struct zb_list fork_list = { &fork_list, &fork_list };

static void fork_before(void)
{
    (void)pthread_mutex_lock(&fork_lock);
}

static void fork_parent(void)
{
    (void)pthread_mutex_unlock(&fork_lock);
}

static void fork_child(void)
{
    zb_list_each(pos, &fork_list)
    {
        struct zb_fork *f = zb_container_of(pos, struct zb_fork, node);

        f->child(f);
    }
    (void)pthread_mutex_unlock(&fork_lock); /* this thread took it in the parent, before fork() */
}

static void fork_register(void)
{
    (void)pthread_atfork(fork_before, fork_parent, fork_child);
}

void zb_fork_watch(struct zb_fork *f, void (*child)(struct zb_fork *f))
{
    (void)pthread_once(&fork_once, fork_register);
    f->child = child;
    (void)pthread_mutex_lock(&fork_lock);
    zb_list_push_back(&fork_list, &f->node);
    (void)pthread_mutex_unlock(&fork_lock);
}

void zb_fork_forget(struct zb_fork *f)
{
    (void)pthread_mutex_lock(&fork_lock);
    if (f->node.next) /* neighbours in the list write it too, so check under the lock */
        zb_list_remove(&f->node);
    (void)pthread_mutex_unlock(&fork_lock);
}
