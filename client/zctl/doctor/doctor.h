/*
 * doctor.h - zctl doctor. main.c lists it.
 */
#ifndef ZCTL_DOCTOR_H
#define ZCTL_DOCTOR_H

#include "client/zctl/base/zctl.h"

extern const struct zctl_cmd zctl_doctor;

#endif
