#!/usr/bin/env python3
"""check_includes_test.py - check_includes.py sees what it must, on small trees of its own."""
import os
import tempfile
import unittest

import check_includes

PAGE = """
## Folders

| folder | may include |
|---|---|
| `base/` | nothing of this project |
| `lib/` | `base/` |
| `lib/inner/` | `lib/api.h`, `lib/back_priv.h`, `base/` |
| `tests/` | anything |

## External headers

| header | files |
|---|---|
| `uv.h` | `lib/loop_*`, `tests/` |
"""

TREE = {
    "base/a.h": "",
    "base/a_priv.h": "",
    "lib/api.h": "",
    "lib/back_priv.h": "",
    "lib/loop_priv.h": "#include <uv.h>\n",
    "lib/loop_x.c": '#include "lib/loop_priv.h"\n#include "base/a.h"\n',
    "lib/made.c": '#include "lib/wire.pb-c.h"\n#include "lib_commit.h"\n',
    "lib/inner/z.c": '#include "lib/api.h"\n#include "lib/back_priv.h"\n',
    "tests/t.c": '#include "lib/loop_priv.h"\n#include "base/a_priv.h"\n',
}

# name, file, its text, a part of what is said about it
CASES = [
    ("a folder that is not named", "base/b.c", '#include "lib/api.h"\n',
     "base/b.c:1: includes 'lib/api.h': base/ may include nothing of this project"),
    ("another file of a folder of which one file is named", "lib/inner/w.c",
     '\n#include "lib/loop_priv.h"\n', "lib/inner/w.c:2: includes 'lib/loop_priv.h'"),
    ("a private header of an allowed folder", "lib/p.c", '#include "base/a_priv.h"\n',
     "it is private to base/"),
    ("tests, by anybody", "lib/q.c", '#include "tests/t.h"\n', "includes 'tests/t.h'"),
    ("a file that is not there", "lib/r.c", '#include "lib/none.h"\n',
     "'lib/none.h' is not a file of ours"),
    ("a made header of another folder", "base/m.c", '#include "lib/wire.pb-c.h"\n',
     "includes 'lib/wire.pb-c.h'"),
    ("a header of others", "lib/s.c", "#  include <uv.h>\n", "lib/s.c: sees <uv.h>"),
    ("a header of others through one of ours", "lib/u.c", '#include "lib/loop_priv.h"\n',
     "lib/u.c: sees <uv.h>"),
    ("a folder without a row", "other/v.c", "", "other/v.c: its folder has no row"),
]

PAGES = [
    ("no section", PAGE.replace("## Folders", "## Others"), "no section 'Folders'"),
    ("no table", PAGE.replace("|", "/"), "no table in section 'Folders'"),
    ("a cell too many", PAGE.replace("| anything |", "| anything | more |"), "has 3 cells"),
    ("words that name nothing", PAGE.replace("nothing of this project", "whatever"), "'whatever'"),
    ("a folder without a slash", PAGE.replace("`lib/inner/`", "`lib/inner`"), "is not a folder"),
    ("an allowed folder without a row", PAGE.replace("| `lib/` | `base/`", "| `lib/` | `bsae/`"),
     "'bsae/' may be included"),
    ("a header that nobody may see", PAGE.replace("`lib/loop_*`, `tests/`", "nobody"),
     "nobody may see 'uv.h'"),
]


class CheckIncludes(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="zshard-includes-")
        self.put("docs/INCLUDES.md", PAGE)
        self.put("tests/t.h", "")
        for path, text in TREE.items():
            self.put(path, text)

    def tearDown(self):
        self.dir.cleanup()

    def put(self, path, text):
        path = os.path.join(self.dir.name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def test_fine(self):
        count, wrong = check_includes.check(self.dir.name)
        self.assertEqual((count, wrong), (len(TREE) + 1, []))

    def test_wrong(self):
        for name, path, text, say in CASES:
            with self.subTest(name):
                self.put(path, text)
                _, wrong = check_includes.check(self.dir.name)
                os.remove(os.path.join(self.dir.name, path))
                self.assertTrue(any(say in line for line in wrong), wrong)

    def test_page(self):
        for name, page, say in PAGES:
            with self.subTest(name):
                self.put("docs/INCLUDES.md", page)
                with self.assertRaisesRegex(check_includes.Bad, say):
                    check_includes.check(self.dir.name)


if __name__ == "__main__":
    unittest.main()
