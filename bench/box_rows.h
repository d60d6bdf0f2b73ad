/*
 * box_rows.h - rows of `zbench comm` on a simulated node.
 */
#ifndef ZBENCH_BOX_ROWS_H
#define ZBENCH_BOX_ROWS_H

#include "bench/zbench.h"

/** link: bytes a second of each direction of a GPU's link; host: of the host memory. 0, or a
 * failure in z->err. */
int zbench_box_rows(struct zbench *z, double link, double host);

#endif
