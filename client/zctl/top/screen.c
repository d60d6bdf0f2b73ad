/*
 * screen.c - draws the terminal in place, and restores it.
 *
 * MODEL. The alternate screen, by ANSI sequences; no curses. The terminal is restored however the
 * program ends: by screen_close() on success and on errors; on a signal screen_wait() returns
 * SCREEN_END. A signal that arrives outside of screen_wait() (while the daemon does not answer) is
 * remembered. A second one restores the terminal in its handler and ends the process.
 *
 *     ^C, TERM, HUP, QUIT, q   END
 *     ^Z                       the terminal is restored while the process is stopped
 *     WINCH                    SIZE: draw again
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/top/top.h"

#define ENTER "\033[?1049h\033[?25l" /* another screen, no cursor */
#define LEAVE "\033[?25h\033[?1049l"

static const int screen_signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH };

static struct {
    FILE *out; /* NULL: there is no screen */
    int fd;
    bool keys; /* standard input is a terminal, too: its mode was changed */
    struct termios before;
    struct sigaction actions[ZB_COUNT(screen_signals)]; /* as they were */
} screen;

static volatile sig_atomic_t screen_end, screen_stop, screen_size;

static void screen_give(void)
{
    ssize_t n = write(screen.fd, LEAVE, sizeof(LEAVE) - 1);

    (void)n; /* a failure cannot be reported */
    if (screen.keys)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
}

static void screen_on_signal(int number)
{
    if (number == SIGWINCH) {
        screen_size = 1;
    } else if (number == SIGTSTP) {
        screen_stop = 1;
    } else if (screen_end) {
        screen_give();
        _exit(128 + number);
    } else {
        screen_end = 1;
    }
}

static void screen_take(void)
{
    struct termios mode = screen.before;

    mode.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    if (screen.keys)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &mode);
    (void)fputs(ENTER, screen.out);
    (void)fflush(screen.out);
}

int screen_open(FILE *out, struct zb_err *err)
{
    struct sigaction action = { .sa_handler = screen_on_signal };

    if (!isatty(fileno(out)))
        return zb_fail(err, -errno, "the output: %m");
    screen_end = screen_stop = screen_size = 0;
    screen.out = out;
    screen.fd = fileno(out);
    screen.keys = tcgetattr(STDIN_FILENO, &screen.before) == 0;
    for (size_t i = 0; i < ZB_COUNT(screen_signals); i++)
        (void)sigaction(screen_signals[i], &action, &screen.actions[i]);
    screen_take();
    return 0;
}

void screen_close(void)
{
    if (!screen.out)
        return;
    screen_give();
    for (size_t i = 0; i < ZB_COUNT(screen_signals); i++)
        (void)sigaction(screen_signals[i], &screen.actions[i], NULL);
    screen.out = NULL;
}

/* Draws a line, cut to the width. The row is cleared first: after a full line the cursor may still
 * be on its last column. */
static const char *draw_line(const char *text, size_t columns, bool bold)
{
    size_t len = strcspn(text, "\n");

    (void)fprintf(screen.out, "\033[K%s%.*s%s", bold ? "\033[1m" : "",
                  (int)zb_min_u64(len, columns), text, bold ? "\033[m" : "");
    return text[len] == '\n' ? text + len + 1 : text + len;
}

int screen_draw(const char *text)
{
    struct winsize size = { .ws_row = 24, .ws_col = 80 };
    unsigned row = 0;

    (void)ioctl(screen.fd, TIOCGWINSZ, &size);
    if (size.ws_row == 0 || size.ws_col == 0) /* a terminal that does not say */
        size = (struct winsize){ .ws_row = 24, .ws_col = 80 };
    (void)fputs("\033[H", screen.out);
    for (; row < size.ws_row && *text; row++) {
        if (row > 0)
            (void)fputc('\n', screen.out);
        text = draw_line(text, size.ws_col, row == 0);
    }
    if (row < size.ws_row)
        (void)fputs("\n\033[J", screen.out);
    return fflush(screen.out) != 0 || ferror(screen.out) ? -EIO : 0;
}

/* Stops the process, as an uncaught SIGTSTP would. Returns after it is continued. */
static void screen_suspend(void)
{
    screen_stop = 0;
    screen_give();
    (void)raise(SIGSTOP);
    screen_take();
    screen_size = 1;
}

/* Waits for a key or a signal. Signals are unblocked only within ppoll(), so none is missed between
 * the check of the flags and the wait. */
static void screen_poll(uint64_t ns)
{
    struct pollfd keys = { .fd = screen.keys ? STDIN_FILENO : -1, .events = POLLIN };
    struct timespec timeout = { .tv_sec = (time_t)(ns / 1000000000),
                                .tv_nsec = (long)(ns % 1000000000) };
    sigset_t ours, before;
    char key;

    (void)sigemptyset(&ours);
    for (size_t i = 0; screen.out && i < ZB_COUNT(screen_signals); i++)
        (void)sigaddset(&ours, screen_signals[i]);
    (void)sigprocmask(SIG_BLOCK, &ours, &before);
    if (!screen_end && !screen_stop && !screen_size && ppoll(&keys, 1, &timeout, &before) > 0) {
        ssize_t n = read(STDIN_FILENO, &key, 1);

        if (n == 1 && (key == 'q' || key == 'Q'))
            screen_end = 1;
        else if (n <= 0)
            screen.keys = false; /* end of input */
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
}

enum screen_event screen_wait(uint64_t until_ns)
{
    for (;;) {
        uint64_t now_ns = zb_now_ns();

        if (screen_end)
            return SCREEN_END;
        if (screen_stop)
            screen_suspend();
        if (screen_size) {
            screen_size = 0;
            return SCREEN_SIZE;
        }
        if (now_ns >= until_ns)
            return SCREEN_TIME;
        screen_poll(until_ns - now_ns);
    }
}
