#include "tests/ztest.h"

#include <errno.h>
#include <string.h>

#include "examples/gpt/note.h"

static void only_this_run(void **state)
{
    static const struct gpt_args args = { .job = "j",
                                          .layers = 2,
                                          .heads = 2,
                                          .width = 16,
                                          .seq = 8,
                                          .seed = 5,
                                          .batch = 6,
                                          .micro_batch = 3,
                                          .lr = 1 };
    static const struct gpt_data_info data = { .tokens = 1000, .hash = 77 };
    static const char *const says[] = { "layers", "heads", "width", "seq",  "dtype",
                                        "seed",   "batch", "data",  "data", "step" };
    char note[GPT_NOTE_BYTES];
    size_t bytes = gpt_note_write(note, &args, &data, 9);

    (void)state;
    assert_int_equal(bytes, strlen(note));
    assert_int_equal(gpt_note_check(note, bytes, &args, &data, 9, NULL), 0);
    for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++) {
        struct gpt_args a = args;
        struct gpt_data_info d = data;
        struct zb_err err = { 0 };
        uint32_t *const numbers[] = { &a.layers, &a.heads, &a.width, &a.seq, &a.dtype };
        uint64_t step = 9;

        if (i < 5)
            *numbers[i] = *numbers[i] == 0;
        a.seed += i == 5;
        a.batch += i == 6;
        d.tokens += i == 7;
        d.hash += i == 8;
        step += i == 9;
        assert_int_equal(gpt_note_check(note, bytes, &a, &d, step, &err), -EEXIST);
        if (!strstr(err.text, says[i]) || !strstr(err.text, "'j'"))
            fail_msg("%s: %s", says[i], err.text);
    }
    for (size_t n = 0; n < bytes; n++) /* truncated anywhere */
        assert_int_equal(gpt_note_check(note, n, &args, &data, 9, NULL), -EEXIST);
}

static void what_may_change(void **state)
{
    struct gpt_args args = { .job = "j", .batch = 6, .micro_batch = 3, .steps = 5 };
    struct gpt_data_info data = { .tokens = 1000, .files = 1 };
    char note[GPT_NOTE_BYTES];
    size_t bytes = gpt_note_write(note, &args, &data, 9);

    (void)state;
    args.micro_batch = 2;
    args.lr = args.clip = args.weight_decay = 1;
    args.steps = 50;
    args.export = args.jsonl = "x";
    data.files = 2; /* the same tokens, in other files */
    assert_int_equal(gpt_note_check(note, bytes, &args, &data, 9, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_this_run),
        cmocka_unit_test(what_may_change),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
