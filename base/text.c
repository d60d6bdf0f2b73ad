#include "base/text.h"

size_t zb_text_char(const char *text, size_t bytes, uint32_t *ret_code)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *t = (const unsigned char *)text;
    size_t n = t[0] < 0x80 ? 1 : t[0] >= 0xf0 ? 4 : t[0] >= 0xe0 ? 3 : t[0] >= 0xc0 ? 2 : 0;
    uint32_t code;

    if (n == 0 || n > bytes || t[0] >= 0xf8)
        return 0;
    code = n == 1 ? t[0] : t[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((t[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (t[i] & 0x3f);
    }
    if (code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    *ret_code = code;
    return n;
}

bool zb_text_is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

void zb_text_clean(char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        uint32_t code = 0;
        size_t n = zb_text_char(text + i, bytes - i, &code);

        if (n == 0 || zb_text_is_control(code)) {
            text[i] = '?';
            n = 1;
        }
        i += n;
    }
}
