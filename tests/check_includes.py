#!/usr/bin/env python3
"""check_includes.py [ROOT] - holds the sources to the tables of docs/INCLUDES.md.

The tables are parsed from that page and stand nowhere else. Prints one line for each include that
they do not allow, and exits 1 when there was one; 2 when the page itself cannot be read.
"""
import fnmatch
import os
import re
import sys

PAGE = "docs/INCLUDES.md"
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
GENERATED = re.compile(r"(\.pb-c|_commit)\.h$")  # made in the build folder, for the folder it names
PUBLIC = ("client", "client/zero")  # installed headers name each other without a folder


class Bad(Exception):
    """The page does not say what we need."""


def table(text, heading):
    """The rows of the table below a heading, as lists of cells."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not found:
        raise Bad(f"{PAGE}: no section '{heading}'")
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    if len(lines) < 3 or not re.fullmatch(r"[|\-: ]+", lines[1]):
        raise Bad(f"{PAGE}: no table in section '{heading}'")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    for row in rows:
        if len(row) != 2:
            raise Bad(f"{PAGE}: a row of '{heading}' has {len(row)} cells: {row}")
    return rows


def names(cell):
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def folders_of(text):
    """{folder: what it may include}; None: anything."""
    folders = {}
    for left, right in table(text, "Folders"):
        allowed = names(right)
        if not allowed and right not in ("anything", "nothing of this project"):
            raise Bad(f"{PAGE}: '{right}' names nothing that can be included")
        for folder in names(left):
            if not folder.endswith("/"):
                raise Bad(f"{PAGE}: '{folder}' is not a folder")
            folders[folder] = None if right == "anything" else allowed
    for allowed in folders.values():
        for name in allowed or []:
            if name.endswith("/") and name not in folders:
                raise Bad(f"{PAGE}: '{name}' may be included and has no row of its own")
    return folders


def headers_of(text):
    """{header of others: patterns of the files that may see it}."""
    headers = {}
    for left, right in table(text, "External headers"):
        for header in names(left):
            headers[header] = [p + "*" if p.endswith("/") else p for p in names(right)]
            if not headers[header]:
                raise Bad(f"{PAGE}: nobody may see '{header}'")
    return headers


def sources(root):
    for folder, dirs, files in os.walk(root):
        top = folder == root
        dirs[:] = sorted(d for d in dirs if not (d.startswith(".") or top and d.startswith("build")))
        for name in sorted(files):
            if name.endswith((".c", ".h", ".cu", ".inc")):
                yield os.path.relpath(os.path.join(folder, name), root)


def folder_of(path, folders):
    """The longest folder of the table that holds the path, or None."""
    return max((f for f in folders if path.startswith(f)), key=len, default=None)


def resolve(root, path, name):
    """The file of ours that `name` means in `path`, or None."""
    for where in (os.path.dirname(path), "", *PUBLIC):
        found = os.path.normpath(os.path.join(where, name))
        if os.path.isfile(os.path.join(root, found)):
            return found
    if not GENERATED.search(name):
        return None
    return name if "/" in name else os.path.join(os.path.dirname(path), name)


def includes(root, paths):
    """{path: ([(line, file of ours)], {headers of others})}, and what could not be resolved."""
    graph, wrong = {}, []
    for path in paths:
        ours, others = [], set()
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                found = INCLUDE.match(line)
                if not found:
                    continue
                target = resolve(root, path, found[1]) if found[1] else None
                if target:
                    ours.append((number, target))
                elif found[1]:
                    wrong.append(f"{path}:{number}: '{found[1]}' is not a file of ours")
                else:
                    others.add(found[2])
        graph[path] = (ours, others)
    return graph, wrong


def may(path, target, folders):
    """None, or why not."""
    mine, theirs = folder_of(path, folders), folder_of(target, folders)
    if mine == theirs:
        return None
    allowed = folders[mine]
    if allowed is not None and target not in allowed and theirs not in allowed:
        return f"{mine} may include {', '.join(allowed) or 'nothing of this project'}"
    if target.endswith("_priv.h") and allowed is not None and target not in allowed:
        return f"it is private to {theirs}"
    return None


def seen(path, graph, cache):
    """Every header of others that a file sees, through headers of ours too."""
    if path not in cache:
        cache[path] = set()  # a cycle ends here
        ours, others = graph.get(path, ([], set()))
        cache[path] = others.union(*(seen(target, graph, cache) for _, target in ours))
    return cache[path]


def check(root):
    with open(os.path.join(root, PAGE), encoding="utf-8") as file:
        text = file.read()
    folders, headers = folders_of(text), headers_of(text)
    paths = list(sources(root))
    graph, wrong = includes(root, paths)
    cache = {}
    for path in paths:
        if folder_of(path, folders) is None:
            wrong.append(f"{path}: its folder has no row in {PAGE}")
            continue
        for number, target in graph[path][0]:
            if folder_of(target, folders) is None:
                wrong.append(f"{path}:{number}: the folder of '{target}' has no row in {PAGE}")
                continue
            why = may(path, target, folders)
            if why:
                wrong.append(f"{path}:{number}: includes '{target}': {why}")
        for header in sorted(seen(path, graph, cache) & headers.keys()):
            if not any(fnmatch.fnmatch(path, pattern) for pattern in headers[header]):
                wrong.append(f"{path}: sees <{header}>: only {', '.join(headers[header])} may")
    return len(paths), wrong


def main(argv):
    root = argv[1] if len(argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        count, wrong = check(root)
    except (Bad, OSError) as e:
        print(e, file=sys.stderr)
        return 2
    for line in wrong:
        print(line)
    print(f"{count} files, {len(wrong)} includes that {PAGE} does not allow")
    return 1 if wrong or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
