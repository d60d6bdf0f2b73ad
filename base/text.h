/*
 * text.h - text from outside: what is valid UTF-8, and how it is made safe to print.
 */
#ifndef ZB_TEXT_H
#define ZB_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZB_TEXT_CHAR_MAX 4u /* bytes of a character */

/**
 * The bytes of the valid UTF-8 character at text, of which there are at most `bytes`; *ret_code is its
 * number. 0: there is none; *ret_code is unchanged. Shortest form only, no surrogates. Of a text that
 * ends with a NUL `bytes` may be ZB_TEXT_CHAR_MAX: nothing after the NUL is read.
 */
size_t zb_text_char(const char *text, size_t bytes, uint32_t *ret_code);
/** C0, DEL or C1. */
bool zb_text_is_control(uint32_t code);

/**
 * Replaces each byte that could break a line of a log or a terminal by '?': control characters (C0,
 * DEL, and C1 as UTF-8), and bytes that are not valid UTF-8. Messages contain names from sockets and
 * files, also names that were refused because they are not valid.
 */
void zb_text_clean(char *text, size_t bytes);

#endif
