/*
 * forecast_time.c - how long a step takes, and how long the drives last.
 */
#include "base/forecast_priv.h"

#define DAY_S       86400.0
#define YEAR_DAYS   365.0
#define CRC_BYTES_S 10e9 /* of one core, in the cache: less than half of its rate alone */

const char *zb_bound_name(enum zb_bound bound)
{
    static const char *const names[] = { "unknown", "drive-read", "drive-write", "kernel",
                                         "checksums" };

    return names[bound];
}

void zb_forecast_time(const struct zb_node *node, struct zb_forecast *f)
{
    double read = 0, write = 0, kernel = 0, crc = 0;

    f->drive_seconds = f->kernel_seconds = f->step_seconds = 0;
    f->bound = ZB_BOUND_UNKNOWN;
    if ((f->step_read > 0 && node->drive_read <= 0) ||
        (f->step_written > 0 && node->drive_write <= 0))
        return;
    if (f->step_read > 0)
        read = (double)f->step_read / node->drive_read;
    if (f->step_written > 0)
        write = ((double)f->step_written + (double)f->commit_written * f->commit_share) /
                node->drive_write;
    f->drive_seconds = read + write;
    if (node->memory > 0)
        kernel = (double)f->kernel_bytes / node->memory;
    if (node->cores > 0)
        crc = (double)f->crc_bytes / (CRC_BYTES_S * node->cores);
    f->kernel_seconds = kernel + crc;
    f->step_seconds = f->drive_seconds > f->kernel_seconds ? f->drive_seconds : f->kernel_seconds;
    if (f->step_seconds == 0)
        return;
    if (f->drive_seconds >= f->kernel_seconds)
        f->bound = read >= write ? ZB_BOUND_READ : ZB_BOUND_WRITE;
    else
        f->bound = kernel >= crc ? ZB_BOUND_KERNEL : ZB_BOUND_CRC;
}

/* Computing takes ZB_FLOPS_TOKEN operations per parameter and token. hide_tokens is the number of
 * tokens whose computation takes as long as the drive. */
void zb_forecast_wear(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *f)
{
    double written = (double)(f->step_written + f->push_written) +
                     (double)f->commit_written * f->commit_share;
    double fetch = node->drive_read > 0 ? (double)(f->fetch_read + f->push_read) / node->drive_read
                                        : 0;
    double push = node->drive_write > 0 ? (double)f->push_written / node->drive_write : 0;
    double seconds = run->seconds > 0 ? run->seconds : f->step_seconds;

    if (run->flops > 0 && f->drive_seconds > 0)
        f->hide_tokens = (f->drive_seconds + fetch + push) * run->flops * run->ranks /
                         (ZB_FLOPS_TOKEN * (double)run->model->params);
    if (seconds > 0 && written > 0) {
        f->written_day = written / seconds * DAY_S;
        if (node->endurance > 0)
            f->endurance_years = node->endurance / f->written_day / YEAR_DAYS;
    }
}
