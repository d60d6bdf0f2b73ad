#!/usr/bin/env python3
"""layout.py LIBRARY CC [--record] - the sizes and offsets of all public structs, and the values of
public enums' names, are those of layout.txt. A program that was linked against the library keeps
them for as long as it lives: whoever changes one gives the library another SONAME (SOVERSION in
client/CMakeLists.txt), and records anew. What is recorded names the SONAME that it is of.

What is only new breaks nobody, and is printed: record it, too, so that it is held from then on.
--record writes layout.txt. Before the first release that is all there is to do."""
import os
import re
import subprocess
import sys
import tempfile

import headers

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "layout.txt")


def public():
    """({struct: [field, ...]}, [name of an enum's value, ...]) as the headers declare them."""
    structs, values = {}, []
    for path in headers.paths():
        text = re.sub(r"/\*.*?\*/", "", open(path).read(), flags=re.S)
        text = re.sub(r"^#.*$", "", text, flags=re.M)
        for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.S | re.M):
            structs[name] = []
            for line in body.split(";"):
                names = re.search(r"\(\*(\w+)\)|([\w\s,*\[\]]*)$", line.strip())
                if not line.strip():
                    continue
                if names[1]:
                    structs[name].append(names[1])
                    continue
                for part in line.split(","):
                    structs[name].append(re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part)[1])
        for body in re.findall(r"^enum(?: \w+)? \{(.*?)\};", text, re.S | re.M):
            values += re.findall(r"\b([A-Z][A-Z0-9_]+)\b\s*(?:=[^,]*)?(?:,|$)", body.strip())
    return structs, values


def layout(cc):
    structs, values = public()
    lines = []
    for name, fields in structs.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for f in fields:
            lines.append(f'printf("{name}.{f} %zu %zu\\n", offsetof(struct {name}, {f}), '
                         f'sizeof(((struct {name} *)0)->{f}));')
    lines += [f'printf("{v} %lld\\n", (long long){v});' for v in values]
    includes = "".join(f'#include "{p}"\n' for p in headers.paths())
    source = (f"#include <stddef.h>\n#include <stdio.h>\n{includes}"
              f"int main(void) {{ {' '.join(lines)} return 0; }}\n")
    with tempfile.TemporaryDirectory() as d:
        program = os.path.join(d, "layout")
        subprocess.run([cc, "-x", "c", "-I" + os.path.join(headers.ROOT, "client"), "-o", program,
                        "-"], input=source, text=True, check=True)
        return subprocess.run([program], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.splitlines()


def soname(library):
    out = subprocess.run(["readelf", "-d", library], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    return re.search(r"Library soname: \[(.*)\]", out)[1]


def main():
    library, cc = sys.argv[1:3]
    now = [f"soname {soname(library)}", *layout(cc)]
    if sys.argv[3:] == ["--record"]:
        with open(LIST, "w", encoding="ascii") as file:
            file.write("\n".join(now) + "\n")
        return 0
    was = open(LIST, encoding="ascii").read().splitlines()
    gone, new = sorted(set(was) - set(now)), sorted(set(now) - set(was))
    for line in gone:
        print(f"was: {line}")
    for line in new:
        print(f"is:  {line}")
    print(f"{len(now)} lines of layout, {len(new)} new")
    if gone:
        print("what is public has another layout: programs that are linked break, unless the SONAME "
              "changes with it\nthen record it: python3 tests/abi/layout.py LIBRARY CC --record")
    return 1 if gone else 0


sys.exit(main())
