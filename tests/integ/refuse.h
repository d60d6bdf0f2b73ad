/*
 * refuse.h - what tests share of what a real daemon refuses: each with its code and a sentence, and
 * without damage: behind every table the same job, or a new one, still works.
 */
#ifndef ZINTEG_REFUSE_H
#define ZINTEG_REFUSE_H

#include "tests/integ/zinteg.h"

#define RF_PAGE    4096u
#define RF_STAGING (1u << 20)

/** Options of a small daemon. */
extern const char *const rf_small[];

/** Messages that are not refused. */
extern const Zp__JobOpen rf_open;
extern const Zp__UnitDefine rf_unit;
#define RF_RANGE(u, f, c)                                        \
    {                                                            \
        PROTOBUF_C_MESSAGE_INIT(&zp__range__descriptor), u, f, c \
    }

/** The sentence must have `part`, and be one line. */
void rf_says(const char *name, int rc, int want, const char *text, const char *part);
/** The same of a request. */
void rf_refused(const char *name, struct zi_raw *r, unsigned method,
                const ProtobufCMessage *message, int want, const char *part);

#endif
