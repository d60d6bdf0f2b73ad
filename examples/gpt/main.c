/*
 * main.c - zgpt: arguments, signals, exit status. Nothing else prints or exits.
 */
#include <signal.h>
#include <stdio.h>

#include "client/zclient.h"
#include "examples/gpt/args.h"
#include "examples/gpt/train.h"

static volatile sig_atomic_t stop;

static void on_signal(int signal_number)
{
    (void)signal_number;
    stop = 1;
}

/* The first one ends the run in good order; the second one ends the process. */
static void signals_set(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART | SA_RESETHAND };

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
}

static int run(const struct gpt_args *args, struct zb_err *err)
{
    if (args->help) {
        gpt_args_help(stdout);
        return 0;
    }
    if (args->version) {
        printf("zgpt %s\n", ZSHARD_VERSION);
        return 0;
    }
    signals_set();
    return gpt_train(args, &stop, stdout, err);
}

int main(int argc, char **argv)
{
    struct zb_err err = { 0 };
    struct gpt_args args;
    int rc = gpt_args_parse(&args, argc - 1, argv + 1, &err);

    if (rc == 0)
        rc = run(&args, &err);
    gpt_args_done(&args);
    if (rc != 0)
        fprintf(stderr, "zgpt: %s\n", err.text);
    return zc_exit_code(rc);
}
