/*
 * fair.h - rates of flows that share resources, max-min fair: the rates of all flows rise together,
 * until a resource is full. Its flows keep that rate, and the others rise further.
 */
#ifndef ZBENCH_FAIR_H
#define ZBENCH_FAIR_H

#include <stdint.h>

struct zbench_fair {
    uint32_t flows, resources;
    /* How much of the resource a byte of the flow takes: 0 if it does not use it, or has ended. */
    double (*takes)(const void *arg, uint32_t flow, uint32_t resource);
    /* Bytes a second; INFINITY: unlimited. */
    double (*limit)(const void *arg, uint32_t resource);
    const void *arg;
};

/** Computes the rate of each flow, in bytes a second; 0: it uses no resource. */
void zbench_fair_rates(const struct zbench_fair *fair, double *rates);

#endif
