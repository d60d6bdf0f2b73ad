#!/usr/bin/env python3
"""lint_test.py - lint.py finds what it is for: each row is a tree with one fault, and the words that name it."""
import os
import sys
import tempfile

import lint

ROWS = [
    # (file, text, the finding; None: nothing)
    ("README.md", "All is well: no option has that name.\n", None),
    ("README.md", "'x' is no\noption of it\n", "README.md:1: 'is no option'"),
    ("README.md", "# A\n\n| a | b |\n|---|---|\n\nCommit each so manieth step.\n", "README.md:6: 'so manieth'"),
    ("CHANGELOG.md", "the least that would do\n", "CHANGELOG.md:1: 'that would do'"),
    ("docs/how-to/x.md", "It starts anew.\n", "docs/how-to/x.md:1: 'anew'"),
    ("docs/man/zctl.1", "whoever asks\n", "docs/man/zctl.1:1: 'whoever'"),
    ("client/zclient.h", "/** Every\n * so manieth step. */\n", "client/zclient.h:1: 'so manieth'"),
    ("client/other.c", "/* each so manieth one */\nint x;\n", None),
    ("daemon/op/x.c", 'int f(void)\n{\n    return say("the least that "\n               "would do");\n}\n',
     "daemon/op/x.c:3: 'that would do'"),
    ("daemon/op/x.c", '/* "the least that would do" */\nchar c = \'"\', *s = "fine"; /* anew */\n', None),
    ("python/zshard/x.py", '"""Fine."""\n\n\ndef f():\n    """It is said."""\n', "python/zshard/x.py:5: 'is said'"),
    ("README.md", "[a page](docs/gone.md)\n", "README.md:1: link to docs/gone.md: there is no such file"),
    ("README.md", "# My `zctl` page\n\n[here](#my-zctl-page)\n", None),
    ("README.md", "# My page\n\n[here](#your-page)\n", "README.md:3: link to #your-page: there is no such heading"),
    ("README.md", "```sh\n[not](a-link)\n```\n[out](https://example.org/x)\n", None),
    ("daemon/op/README.md", "\n[up](../../README.md)\n", "daemon/op/README.md:2: link to ../../README.md"),
    ("README.md", "| " + "x" * 130 + " |\n", "README.md:1: a table of 134 columns"),
    ("docs/ENGINE.md", "| " + "x" * 130 + " |\n", None),
]


def main():
    wrong = 0
    for path, text, expected in ROWS:
        with tempfile.TemporaryDirectory(prefix="zshard-lint-") as root:
            place = os.path.join(root, path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "w", encoding="utf-8") as file:
                file.write(text)
            found = list(lint.findings(root))
        if (not found) if expected else found:
            print(f"{path}: {text!r}: found {found}, expected {expected}")
            wrong += 1
        elif expected and not (len(found) == 1 and found[0].startswith(expected)):
            print(f"{path}: {text!r}: found {found}, expected {expected}")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
