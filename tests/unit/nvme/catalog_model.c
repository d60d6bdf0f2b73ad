#include "catalog_model.h"

#include <string.h>

#include "base/crc.h"

struct zn_key model_key(unsigned kind, unsigned a, unsigned b)
{
    /* small and large numbers, so that their order differs from that of the bytes */
    return (struct zn_key){ .kind = kind == 2 ? UINT32_MAX : kind + 1,
                            .a = a == SIDE - 1 ? INT64_MAX : (uint64_t)a << (a * 8),
                            .b = b == SIDE - 1 ? INT64_MAX : (uint64_t)b * 1000 };
}

static void record_fill(const struct record *r, uint8_t *bytes)
{
    uint64_t seed = r->seed, v = 0;

    for (uint32_t i = 0; i < r->len_bytes; i++) {
        if (i % 8 == 0)
            v = ztest_random(&seed);
        bytes[i] = (uint8_t)(v >> i % 8 * 8);
    }
}

void txn_put(struct zn_txn *t, const struct zn_key *key, const struct record *r)
{
    void *room = NULL;

    assert_int_equal(zn_txn_put_room(t, key, r->len_bytes, &room), 0);
    record_fill(r, room);
}

void txn_random(struct zn_txn *t, struct model *m, uint64_t *seed, uint32_t len_max)
{
    unsigned changes = ztest_random(seed) % 12;

    for (unsigned i = 0; i < changes; i++) {
        unsigned kind = ztest_random(seed) % KINDS, a = ztest_random(seed) % SIDE,
                 b = ztest_random(seed) % SIDE, what = ztest_random(seed) % 8;
        struct record *r = &m->records[kind][a][b];
        struct zn_key key = model_key(kind, a, b);

        if (what == 0) {
            assert_int_equal(zn_txn_del_all(t, key.kind, key.a), 0);
            memset(m->records[kind][a], 0, sizeof(m->records[kind][a]));
        } else if (what < 3 && r->there) {
            assert_int_equal(zn_txn_del(t, &key), 0);
            r->there = false;
        } else {
            r->there = true;
            r->len_bytes = (uint32_t)(ztest_random(seed) % 4 == 0 ? ztest_random(seed) % len_max
                                                                  : ztest_random(seed) % 300);
            r->seed = ztest_random(seed);
            txn_put(t, &key, r);
        }
    }
}

/* Whether the catalog returns the model's records, in order. */
struct comparison {
    const struct model *m;
    unsigned at; /* the next position in the model */
    uint64_t digest;
    bool differs;
};

/* An independent implementation of FORMAT.md. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t digest_of(const struct zn_key *key, const void *bytes, size_t len_bytes)
{
    const uint64_t words[2] = { key->a, key->b }, step = UINT64_C(0x9e3779b97f4a7c15);
    uint32_t crc = zb_crc32c(zb_crc32c(0, &key->kind, 4), words, 16); /* little-endian machines */
    uint64_t h;

    crc = zb_crc32c(crc, bytes, len_bytes);
    h = mix(key->kind + step);
    h = mix(h + key->a + step);
    h = mix(h + key->b + step);
    return mix(h + crc + step);
}

static int compare_one(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zb_err *e)
{
    static uint8_t want[1 << 20];
    struct comparison *c = arg;
    const struct record *flat = &c->m->records[0][0][0];
    struct zn_key k;

    (void)e;
    while (c->at < KINDS * SIDE * SIDE && !flat[c->at].there)
        c->at++;
    if (c->at == KINDS * SIDE * SIDE) {
        c->differs = true;
        return 0;
    }
    k = model_key(c->at / SIDE / SIDE, c->at / SIDE % SIDE, c->at % SIDE);
    record_fill(&flat[c->at], want);
    c->differs = c->differs || k.kind != key->kind || k.a != key->a || k.b != key->b ||
                 flat[c->at].len_bytes != len_bytes || memcmp(want, bytes, len_bytes) != 0;
    c->digest += digest_of(key, bytes, len_bytes);
    c->at++;
    return 0;
}

bool same(struct zn_catalog *c, const struct model *m)
{
    struct comparison x = { .m = m };
    const struct record *flat = &m->records[0][0][0];
    struct zn_catalog_size size;
    uint64_t records = 0, bytes = 0;

    if (zn_catalog_each(c, 1, UINT32_MAX, compare_one, &x, NULL) < 0)
        return false;
    for (unsigned i = 0; i < KINDS * SIDE * SIDE; i++) {
        x.differs = x.differs || (i >= x.at && flat[i].there);
        records += flat[i].there;
        bytes += flat[i].there ? flat[i].len_bytes : 0;
    }
    return !x.differs && x.digest == zn_catalog_slot(c).digest &&
           zn_catalog_size(c, &size, NULL) == 0 && size.records == records &&
           size.record_bytes == bytes;
}
