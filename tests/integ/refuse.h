/*
 * refuse.h - shared by tests of what a real daemon refuses: each refusal has a code and an error
 * message, and does no damage. After every table, the same job, or a new one, still works.
 */
#ifndef ZINTEG_REFUSE_H
#define ZINTEG_REFUSE_H

#include "tests/integ/zinteg.h"

#define RF_PAGE    4096u
#define RF_STAGING (1u << 20)

/** Options of a small daemon. */
extern const char *const rf_small[];

/** Messages that the daemon accepts. */
extern const Zp__JobOpen rf_open;
extern const Zp__UnitDefine rf_unit;
#define RF_RANGE(u, f, c)                                        \
    {                                                            \
        PROTOBUF_C_MESSAGE_INIT(&zp__range__descriptor), u, f, c \
    }

/** The error message must contain `part`, and be one line. */
void rf_says(const char *name, int rc, int want, const char *text, const char *part);
/** The same for a request. */
void rf_refused(const char *name, struct zi_raw *r, unsigned method,
                const ProtobufCMessage *message, int want, const char *part);

#endif
