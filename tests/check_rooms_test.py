#!/usr/bin/env python3
"""check_rooms_test.py - check_rooms.py sees what it must, on a small tree that this test compiles."""
import contextlib
import io
import json
import os
import subprocess
import tempfile
import unittest

import check_rooms

INCLUDES = """
## Folders

| folder | may include |
|---|---|
| `low/` | nothing of this project |
| `top/` | `top/inner/`, `low/` |
| `top/inner/` | `low/` |

## External headers

| header | files |
|---|---|
| `uv.h` | `low/` |
"""

ARCHITECTURE = """
| room | subject | page |
|---|---|---|
| `low/` | the lowest | none |
| `top/` | the highest | none |
| `top/inner/` | a room in it, `top/inner/in.c` | [page](../top/inner/README.md) |
"""

TREE = {
    "docs/INCLUDES.md": INCLUDES,
    "docs/ARCHITECTURE.md": ARCHITECTURE,
    "low/a.c": "int a(void);\nint a(void) { return 1; }\n",
    "low/b.c": "int a(void);\nint b(void);\nint b(void) { return a(); }\n",
    "top/t.c": "int in(void);\nint t(void);\nint t(void) { return in(); }\n",
    "top/inner/in.h": "struct box {\n    int kept;\n    /* ---- ./: the result */\n    int result;\n};\n",
    "top/inner/in.c": '#include "in.h"\nint b(void);\nint in(void);\n'
                      "int in(void) { struct box one, *box = &one; box->kept = b(); return box->kept; }\n",
    "top/inner/README.md": "One source: `in.c`.\n",
}

UPWARD = "int t(void);\nint a(void);\nint a(void) { return t(); }\n"
CIRCLE = "int b(void);\nint a(void);\nint a(void) { return b(); }\n"
WRITES = ('#include "inner/in.h"\nint t(void);\n'
          "int t(void) { struct box one, *box = &one; box->kept = 1; return box->kept; }\n")
MINE = WRITES.replace("kept", "result")

# name, {file: text, None: it is not there}, settings of check_rooms, a part of what is printed
CASES = [
    ("a call of a higher room", {"low/a.c": UPWARD}, {}, "low/ does not link with nothing: t"),
    ("a circle between rooms", {"low/a.c": UPWARD}, {}, "a circle between rooms low/, top/, top/inner/"),
    ("a circle in a room", {"low/a.c": CIRCLE}, {}, "does not list with a reason"),
    ("a circle that is too large", {"low/a.c": CIRCLE}, {"CIRCLE_MAX": 1}, "a circle of 2 sources"),
    ("a circle that is gone", {}, {"CIRCLES": {("low/a.c", "low/b.c"): "why"}}, "lists a circle that is gone"),
    ("a field that another room owns", {"top/t.c": WRITES}, {},
     "top/t.c:3: writes kept of struct box, which top/inner/ owns"),
    ("a field of the upper room in the lower one", {"top/inner/in.c": MINE.replace("inner/", "")}, {},
     "top/inner/in.c:3: writes result of struct box, which top/ owns"),
    ("too many sources", {"top/u.c": "int u;\n"}, {}, "top/ has 2 sources of its own, 1 at most"),
    ("a room without a page", {"top/inner/README.md": None}, {}, "top/inner/ has no README.md"),
    ("a page that is too long", {"top/inner/README.md": "`in.c`\n" * 61}, {}, "has more than 60 lines"),
    ("a source that the page leaves out", {"top/inner/README.md": "\n"}, {}, "does not name in.c"),
    ("a page that names what is gone", {"top/inner/README.md": "`in.c`, `out.c`\n"}, {},
     "names out.c, which is not there"),
    ("a room without a row", {"docs/ARCHITECTURE.md": ARCHITECTURE.replace("| `low/`", "| low")}, {},
     "must have one row for `low/`"),
    ("a row without a room", {"docs/ARCHITECTURE.md": ARCHITECTURE + "| `gone/` | x | none |\n"}, {},
     "has a row for `gone/`"),
    ("a link to no page", {"docs/ARCHITECTURE.md": ARCHITECTURE.replace("README", "READ")}, {},
     "there is no ../top/inner/READ.md"),
    ("a map that names what is gone",
     {"docs/ARCHITECTURE.md": ARCHITECTURE.replace("inner/in.c", "inner/out.c")}, {},
     "names top/inner/out.c, which is not there"),
]


class CheckRooms(unittest.TestCase):
    SETTINGS = {"CIRCLES": {}, "CIRCLE_MAX": 4, "CAPS": {"top/": 1}, "PAGES_OF": ("top/",),
                "OWNERS_OF": ("top/",), "OWNED": {"box": ("top/inner/in.h", r"\bbox", ())}}

    def check(self, changes, settings):
        """The exit status of check_rooms.py on the tree with these changes, and what it printed."""
        kept = {name: getattr(check_rooms, name) for name in self.SETTINGS}
        said = io.StringIO()
        with tempfile.TemporaryDirectory(prefix="zshard-rooms-") as root:
            commands = []
            for path, text in {**TREE, **changes}.items():
                if text is None:
                    continue
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            for path in sorted({**TREE, **changes}):
                if path.endswith(".c"):
                    subprocess.run(["cc", "-fPIC", "-c", path, "-o", path + ".o"], cwd=root, check=True)
                    commands.append({"directory": root, "file": path, "command": f"cc -c {path} -o {path}.o"})
            with open(os.path.join(root, "compile_commands.json"), "w", encoding="utf-8") as file:
                json.dump(commands, file)
            try:
                for name, value in {**self.SETTINGS, **settings}.items():
                    setattr(check_rooms, name, value)
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    status = check_rooms.main(["check_rooms.py", root, root])
            finally:
                for name, value in kept.items():
                    setattr(check_rooms, name, value)
        return status, said.getvalue()

    def test_a_tree_that_holds(self):
        self.assertEqual(self.check({}, {}), (0, "3 rooms, 4 sources, 0 things that do not hold\n"))

    def test_the_owner_may_write(self):
        self.assertEqual(self.check({"top/t.c": MINE}, {})[0], 0)

    def test_a_circle_with_a_reason(self):
        self.assertEqual(self.check({"low/a.c": CIRCLE}, {"CIRCLES": {("low/a.c", "low/b.c"): "why"}})[0], 0)

    def test_what_does_not_hold(self):
        for name, changes, settings, words in CASES:
            with self.subTest(name):
                status, said = self.check(changes, settings)
                self.assertEqual(status, 1, said)
                self.assertIn(words, said)

    def test_no_build(self):
        with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(check_rooms.main(["check_rooms.py", empty]), 2)
        self.assertIn("compile_commands.json", said.getvalue())


if __name__ == "__main__":
    unittest.main()
