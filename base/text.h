/*
 * text.h - text from outside, made safe to print.
 */
#ifndef ZB_TEXT_H
#define ZB_TEXT_H

#include <stddef.h>

/**
 * Replaces each byte that could break a line of a log or a terminal by '?': control characters (C0,
 * DEL, and C1 as UTF-8), and bytes that are not valid UTF-8. Messages contain names from sockets and
 * files, also names that were refused because they are not valid.
 */
void zb_text_clean(char *text, size_t bytes);

#endif
