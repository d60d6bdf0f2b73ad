#include "base/text.h"

/** Bytes of the character at text, of at most `bytes`; 0: it is not valid UTF-8, or a control character. */
static size_t text_char(const unsigned char *text, size_t bytes)
{
    static const unsigned least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    unsigned value, head = text[0];
    size_t n = head < 0x80 ? 1 : head >= 0xf0 ? 4 : head >= 0xe0 ? 3 : head >= 0xc0 ? 2 : 0;

    if (n == 0 || n > bytes || head >= 0xf8)
        return 0;
    value = n == 1 ? head : head & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (text[i] & 0x3f);
    }
    if (value < 0x20 || (value >= 0x7f && value < 0xa0) || value < least[n])
        return 0;
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        return 0;
    return n;
}

void zb_text_clean(char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        size_t n = text_char((const unsigned char *)text + i, bytes - i);

        if (n == 0)
            text[i] = '?';
        i += n > 0 ? n : 1;
    }
}
