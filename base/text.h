/*
 * text.h - text from outside: checks UTF-8, and makes text safe to print.
 */
#ifndef ZB_TEXT_H
#define ZB_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZB_TEXT_CHAR_MAX 4u /* bytes of a character */

/**
 * Length of the valid UTF-8 character at the beginning of text[bytes]; *ret_code is its code point.
 * 0: it is not valid, and *ret_code is unchanged. Shortest form only, no surrogates. For
 * NUL-terminated text, `bytes` may be ZB_TEXT_CHAR_MAX: nothing after the NUL is read.
 */
size_t zb_text_char(const char *text, size_t bytes, uint32_t *ret_code);
/** C0, DEL or C1. */
bool zb_text_is_control(uint32_t code);

/**
 * Replaces each byte that could break a log line or a terminal by '?': control characters (C0, DEL,
 * and C1 as UTF-8), and bytes that are not valid UTF-8. Messages contain names from sockets and
 * files, including names that were rejected as invalid.
 */
void zb_text_clean(char *text, size_t bytes);

#endif
