/*
 * picture.c - the table of --scale as an SVG file: operations per second of a rank, over nodes.
 *
 * MODEL. Numbers of nodes are at equal distances from left to right. The top is the rate of
 * computing that was given. Each mode is a line; a mode that does not fit on a number of nodes has
 * a cross at the bottom there. The file is plain SVG 1.1, without scripts and fonts of its own.
 */
#include <errno.h>
#include <string.h>

#include "client/zctl/plan/plan.h"

#define WIDTH  720.0
#define HEIGHT 400.0
#define LEFT   70.0
#define RIGHT  110.0
#define TOP    40.0
#define BOTTOM 60.0
#define TICKS  4
#define TERA   1e12

static const char *const colors[ZB_MODES] = { "#c0392b", "#e67e22", "#8e6c00",
                                              "#1f6fb2", "#117a65", "#6c3483" };

struct picture {
    FILE *out;
    const struct zctl_scale_row *rows;
    size_t n, each; /* rows of all modes, and of one */
    double top;     /* operations per second at the top */
};

static double x_of(const struct picture *s, size_t i)
{
    double step = s->each > 1 ? (WIDTH - LEFT - RIGHT) / (double)(s->each - 1) : 0;

    return LEFT + step * (double)(i % s->each);
}

static double y_of(const struct picture *s, double flops)
{
    return HEIGHT - BOTTOM - flops / s->top * (HEIGHT - TOP - BOTTOM);
}

static void text(FILE *out, double x, double y, const char *anchor, const char *what)
{
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                  what);
}

static void axes(const struct picture *s, const struct zctl_plan *p)
{
    char words[96];

    (void)snprintf(words, sizeof(words), "TFLOP/s of a rank: %.4g billion parameters, %llu tokens",
                   (double)p->model.params / 1e9, (unsigned long long)p->run.tokens);
    text(s->out, LEFT, TOP - 16, "start", words);
    for (int t = 0; t <= TICKS; t++) {
        double flops = s->top * t / TICKS;

        (void)fprintf(s->out,
                      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ccc\"/>\n",
                      LEFT, y_of(s, flops), WIDTH - RIGHT, y_of(s, flops));
        (void)snprintf(words, sizeof(words), "%.4g", flops / TERA);
        text(s->out, LEFT - 8, y_of(s, flops) + 4, "end", words);
    }
    for (size_t i = 0; i < s->each; i++) {
        (void)snprintf(words, sizeof(words), "%u", s->rows[i].nodes);
        text(s->out, x_of(s, i), HEIGHT - BOTTOM + 20, "middle", words);
    }
    (void)snprintf(words, sizeof(words), "nodes of %u ranks", s->rows[0].ranks / s->rows[0].nodes);
    text(s->out, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 44, "middle", words);
}

/* One mode: rows [from, from + each). */
static void mode_line(const struct picture *s, size_t from)
{
    const char *color = colors[s->rows[from].mode];
    double y = HEIGHT - BOTTOM;

    (void)fprintf(s->out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                  color);
    for (size_t i = from; i < from + s->each; i++)
        if (s->rows[i].timed)
            (void)fprintf(s->out, "%.1f,%.1f ", x_of(s, i), y_of(s, s->rows[i].it.flops));
    (void)fprintf(s->out, "\"/>\n");
    for (size_t i = from; i < from + s->each; i++) {
        double x = x_of(s, i);

        if (s->rows[i].timed) {
            y = y_of(s, s->rows[i].it.flops);
            (void)fprintf(s->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, y,
                          color);
        } else {
            y = HEIGHT - BOTTOM;
            (void)fprintf(s->out,
                          "<path d=\"M%.1f %.1fl10 10m0 -10l-10 10\" stroke=\"%s\" "
                          "stroke-width=\"2\"/>\n",
                          x - 5, y - 5, color);
        }
    }
    (void)fprintf(s->out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s%s</text>\n",
                  WIDTH - RIGHT + 10, y + 4, color, zb_mode_name(s->rows[from].mode),
                  s->rows[from + s->each - 1].timed ? "" : ": no room");
}

int zctl_picture(struct zctl_plan *p, const char *path, const struct zctl_scale_row *rows, size_t n)
{
    struct picture s = { .rows = rows, .n = n, .each = 1, .top = p->run.flops };
    int rc = 0;

    while (s.each < n && rows[s.each].mode == rows[0].mode)
        s.each++;
    s.out = fopen(path, "we");
    if (!s.out)
        return zb_fail(&p->z->err, -errno, "'%s': %s", path, strerror(errno));
    (void)fprintf(s.out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                  "font-family=\"sans-serif\" font-size=\"13\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                  WIDTH, HEIGHT);
    axes(&s, p);
    for (size_t from = 0; from < n; from += s.each)
        mode_line(&s, from);
    (void)fprintf(s.out, "</svg>\n");
    if (ferror(s.out))
        rc = zb_fail(&p->z->err, -EIO, "'%s' cannot be written", path);
    if (fclose(s.out) != 0 && rc == 0)
        rc = zb_fail(&p->z->err, -EIO, "'%s' cannot be written: %s", path, strerror(errno));
    return rc;
}
