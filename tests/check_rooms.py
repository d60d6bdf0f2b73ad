#!/usr/bin/env python3
"""check_rooms.py BUILD [ROOT] - holds the objects of a build to the rooms of docs/INCLUDES.md.

A room is a folder with a row of its own there. The objects are those of BUILD/compile_commands.json.

  link     each room links alone with the rooms that its row names: what a file calls is in its own
           room or in one of those
  circles  inside a room, sources that call one another in a circle are at most CIRCLE_MAX, and stand
           in CIRCLES with the reason
  owners   a field is written in the room that owns it: the room of the header that defines its struct,
           or the one that heads its group there ("/* ---- ROOM/: ... */")
  caps     the number of sources in folders that must stay small
  pages    each room of PAGES_OF has a README.md of at most PAGE_LINES lines, which names each of its
           sources; docs/ARCHITECTURE.md has one row for each room, and no other, and the pages that
           a row links are there; neither names a file that is not there

Prints one line for each thing that does not hold and exits 1; 2 when something cannot be read.
"""
import fnmatch
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_includes  # noqa: E402

CIRCLE_MAX = 4
PAGE_LINES = 60
CAPS = {"daemon/": 8, "client/zero/": 10}
# {struct: (its header, how its variables are called, files that make and free it)}
OWNED = {
    "zsd_job": ("daemon/job/job.h", r"\bjob", ("daemon/op/new.c",)),
    "zsd_disk": ("daemon/disk/disk.h", r"\bdisk", ()),
    "zsd_planner": ("daemon/plan/planner.h", r"\bplanner", ()),
    "zsd_ops": ("daemon/op/ops.h", r"\bops", ()),
    "zsd_replan": ("daemon/plan/replan.h", r"\breplan", ()),
    "zsd_job_gpu": ("daemon/plan/gpu_runs.h", r"\bgpu", ()),
    "zsd_job_params": ("daemon/plan/gpu_params.h", r"\bparams", ("daemon/op/new.c",)),
    "zsd_step_op": ("daemon/op/step.h", r"\bstep", ()),
    "zsd_early": ("daemon/op/early.h", r"\bearly", ()),
    "zc_zero": ("client/zero/core/zero.h", r"\bz", ()),
    "zcz_unit": ("client/zero/core/zero.h", r"\bu", ()),
    "zcz_store": ("client/zero/core/store.h", r"\b(?:s|store|base)", ()),
    "zcz_pass": ("client/zero/pass/pass.h", r"\bpass", ()),
    "zcz_steps": ("client/zero/step/step.h", r"\bsteps", ()),
}
OWNERS_OF = ("daemon/", "client/zero/")  # the rooms of these own fields
ARCHITECTURE = "docs/ARCHITECTURE.md"
PAGES_OF = ("daemon/", "client/zero/")  # folders whose rooms must each have a page
# Not linked alone: they are loaded at run time, or the folder holds programs and not a library.
APART = ("kernels/cuda/", "tests/", "python/", "examples/", "bench/")
PLUGINS = "client/zero/*comm_mpi*.c"  # loaded at run time, with a library of their own
# A row that names one of these folders may use the whole library: its headers stand at the top.
WHOLE = {
    "kernels/": ("kernels/ref/", "kernels/cpu/", "kernels/gpu/"),
    "client/": ("client/conn/", "client/ask/", "client/st/"),
}
# Public headers that stand above the rooms that implement them: a row that names one gives declarations,
# and nothing to link.
DECLARED = ("client/zero/zc_zero.h", "client/zero/zc_config.h")
LIBRARIES = ("libuv libprotobuf-c liburing sqlite3 jansson libisal hwloc").split()

# {sources of a circle: why they stay together}
CIRCLES = {
    ("daemon/op/early.c", "daemon/op/end.c", "daemon/op/push.c", "daemon/op/step.c"):
        "a page that fails ends its job; the end of a job cancels its step, early pages and pushes; "
        "pushes and early pages hand a gradient to each other",
    ("nvme/sim/sim.c", "nvme/sim/sim_vfs.c"):
        "SQLite's file access is the device's, and the device makes the object that SQLite calls",
}


class Bad(Exception):
    """The build cannot be read."""


def words_of(command):
    return shlex.split(command) if re.search(r"[\\'\"]", command) else command.split()


def objects_of(build, root):
    """{source: [object]} of the product: what compile_commands.json says, but for tests."""
    path = os.path.join(build, "compile_commands.json")
    try:
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
    except (OSError, ValueError) as e:
        raise Bad(f"{path}: {e}") from e
    found = {}
    for entry in entries:
        source = os.path.relpath(os.path.realpath(os.path.join(entry["directory"], entry["file"])),
                                 os.path.realpath(root))
        words = words_of(entry.get("command", "")) or entry.get("arguments", [])
        obj = entry.get("output") or words[words.index("-o") + 1]
        obj = os.path.join(entry["directory"], obj)
        inside = os.path.relpath(obj, build)
        if inside.startswith("proto/"):  # with what is made of the .proto file
            source = "proto/" + os.path.basename(source)
        if source.startswith("..") or not source.endswith(".c") or inside.startswith("tests/"):
            continue
        if fnmatch.fnmatch(source, PLUGINS):
            continue
        if os.path.exists(obj):
            found.setdefault(source, []).append(obj)
    if not found:
        raise Bad(f"{build}: no objects")
    return found


@functools.cache
def symbols(obj):
    """(defined, undefined) names of an object."""
    out = subprocess.run(["nm", obj], check=True, text=True, stdout=subprocess.PIPE).stdout
    defined, undefined = set(), set()
    for line in out.splitlines():
        *_, kind, name = line.split()
        if kind == "U":
            undefined.add(name)
        elif kind in "TDBRVWC":
            defined.add(name)
    return defined, undefined


def calls(objects):
    """{source: {source: {names}}}: who takes what from whom."""
    table = {s: [symbols(o) for o in objs] for s, objs in objects.items()}
    owner = {name: s for s, pairs in table.items() for defined, _ in pairs for name in defined}
    graph = {}
    for source, pairs in table.items():
        graph[source] = {}
        for _, undefined in pairs:
            for name in undefined:
                if owner.get(name, source) != source:
                    graph[source].setdefault(owner[name], set()).add(name)
    return graph


def circles(graph):
    """The strongly connected sets of two and more (Tarjan)."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on.add(v)
        for w in graph[v]:
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            members = []
            while True:
                w = stack.pop()
                on.discard(w)
                members.append(w)
                if w == v:
                    break
            if len(members) > 1:
                found.append(tuple(sorted(members)))

    sys.setrecursionlimit(10000)
    for v in sorted(graph):
        if v not in index:
            visit(v)
    return sorted(found)


def check_circles(graph, folders, known):
    wrong, seen = [], set()
    for circle in circles(graph):
        rooms = {check_includes.folder_of(s, folders) for s in circle}
        how = "; ".join(f"{a} takes {', '.join(sorted(graph[a][b])[:3])} from {b}"
                        for a in circle for b in circle if b in graph[a])
        seen.add(circle)
        if len(rooms) > 1:
            wrong.append(f"a circle between rooms {', '.join(sorted(rooms))}: {how}")
        elif len(circle) > CIRCLE_MAX:
            wrong.append(f"a circle of {len(circle)} sources, {CIRCLE_MAX} at most: {how}")
        elif circle not in known:
            wrong.append(f"a circle that tests/check_rooms.py does not list with a reason: {how}")
    for circle in known:
        if circle not in seen and all(s in graph for s in circle):
            wrong.append(f"tests/check_rooms.py lists a circle that is gone: {', '.join(circle)}")
    return wrong


def lower(room, folders):
    """The rooms that the row of this one names, by folder or by one of their headers."""
    rooms = set()
    for name in folders[room] or []:
        if name in DECLARED and room.startswith(os.path.dirname(name)):
            continue
        rooms.add(name if name.endswith("/") else check_includes.folder_of(name, folders))
    for top, inner in WHOLE.items():
        if top in rooms and room not in inner:
            rooms.update(f for f in inner if f in folders)
    return rooms - {room, None}


def below(room, folders):
    """lower(), and what these may know in turn: a library brings its own with it."""
    found, todo = set(), [room]
    while todo:
        for other in lower(todo.pop(), folders) - found - {room}:
            found.add(other)
            todo.append(other)
    return found


def external():
    out = subprocess.run(["pkg-config", "--libs", *LIBRARIES], text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, check=False).stdout
    return shlex.split(out) + ["-lpthread", "-ldl", "-lm"]


def archive(path, objs):
    subprocess.run(["ar", "rcsT", path, *objs], check=True)
    return path


def check_links(objects, folders):
    """Links each room alone, as a shared library without undefined symbols."""
    rooms, wrong = {}, []
    for source, objs in objects.items():
        if not any("main" in symbols(o)[0] for o in objs):  # a program's: not for a library
            rooms.setdefault(check_includes.folder_of(source, folders), []).extend(objs)
    rooms.pop(None, None)
    libraries = external()
    with tempfile.TemporaryDirectory() as where:
        made = {room: archive(os.path.join(where, room.strip("/").replace("/", "_") + ".a"), objs)
                for room, objs in rooms.items()}
        for room in sorted(rooms):
            if room.startswith(APART):
                continue
            others = [made[r] for r in sorted(below(room, folders)) if r in made]
            got = subprocess.run(
                ["cc", "-shared", "-o", os.path.join(where, "room.so"), "-Wl,-z,defs", "-Wl,-S",
                 "-Wl,--whole-archive", made[room], "-Wl,--no-whole-archive", "-Wl,--start-group",
                 *others, "-Wl,--end-group", *libraries],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            missing = sorted(set(re.findall(r"undefined (?:reference to|symbol:?) [`']?(\w+)", got.stdout)))
            if got.returncode != 0:
                wrong.append(f"{room} does not link with {', '.join(sorted(below(room, folders))) or 'nothing'}"
                             f": {', '.join(missing) or got.stdout.strip()[-300:]}")
    return len(rooms), wrong


def without_comments(text):
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def owners_of(text, struct, room):
    """{field: room that owns it, None: anybody's}."""
    top = next(folder for folder in OWNERS_OF if room.startswith(folder))
    found = re.search(rf"^struct {struct} {{\n(.*?)^}};", text, re.M | re.S)
    if not found:
        raise Bad(f"no struct {struct}")
    owners, owner = {}, room
    parts = re.split(r"/\* ---- ([^:]+):.*?\*/", found[1], flags=re.S)
    for i, part in enumerate(parts):
        if i % 2:
            owner = os.path.normpath(top + part) + "/" if part.endswith("/") else None
            continue
        for declaration in without_comments(part).split(";"):
            names = re.sub(r"\[[^\]]*\]|\{[^}]*\}", "", declaration).split(",")
            for n, name in enumerate(names):
                words = re.findall(r"\w+", name)
                if words and (n > 0 or len(words) > 1):
                    owners[words[-1]] = owner
    return owners


def check_owners(root):
    wrong, owned = [], 0
    texts = {}
    for top in OWNERS_OF:
        for folder, _, files in os.walk(os.path.join(root, top)):
            for name in files:
                if name.endswith(".c"):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        texts[os.path.relpath(path, root)] = without_comments(file.read())
    for struct, (header, variable, makers) in OWNED.items():
        top = next(folder for folder in OWNERS_OF if header.startswith(folder))
        with open(os.path.join(root, header), encoding="utf-8") as file:
            owners = owners_of(file.read(), struct, os.path.dirname(header) + "/")
        owned += len(owners)
        write = re.compile(rf"(?:\+\+|--)?{variable}->(\w+)(?:\[[^\]]*\]|\.\w+)*\s*"
                           r"(?:=(?!=)|\+\+|--|[-+|&]=)|(?:\+\+|--)\(*(?:\w+->)*" + variable
                           + r"->(\w+)\b(?!\s*(?:->|\.))")
        for path, text in sorted((p, t) for p, t in texts.items() if p.startswith(top)):
            for found in write.finditer(text):
                field = found[1] or found[2]
                owner = owners.get(field)
                if owner and path not in makers and os.path.dirname(path) + "/" != owner:
                    line = text.count("\n", 0, found.start()) + 1
                    wrong.append(f"{path}:{line}: writes {field} of struct {struct}, which {owner} owns")
    if owned == 0:
        wrong.append("no field has an owner")
    return wrong


def check_caps(root):
    wrong = []
    for folder, cap in CAPS.items():
        n = sum(f.endswith(".c") for f in os.listdir(os.path.join(root, folder)))
        if n > cap:
            wrong.append(f"{folder} has {n} sources of its own, {cap} at most: give them to a room")
    return wrong


def check_page(root, room):
    """A room's own page: short, names every source, and no file that is not there."""
    page = os.path.join(root, room, "README.md")
    if not os.path.exists(page):
        return [f"{room} has no README.md"]
    with open(page, encoding="utf-8") as file:
        text = file.read()
    wrong = []
    if text.count("\n") > PAGE_LINES:
        wrong.append(f"{room}README.md has more than {PAGE_LINES} lines")
    for name in sorted(os.listdir(os.path.join(root, room))):
        if name.endswith(".c") and not re.search(rf"`{name[:-2]}\.[ch]`", text):
            wrong.append(f"{room}README.md does not name {name}")
    for name in sorted(set(re.findall(r"`((?!test_)[\w/]+\.[ch])`", text))):
        if not any(os.path.exists(os.path.join(root, at, name)) for at in (room, *PAGES_OF, "")):
            wrong.append(f"{room}README.md names {name}, which is not there")
    return wrong


def check_pages(root, folders):
    wrong = []
    with open(os.path.join(root, ARCHITECTURE), encoding="utf-8") as file:
        text = file.read()
    rows = re.findall(r"^\| `([\w/]+/)` \|.*\|([^|]*)\|$", text, re.M)
    for name in sorted(set(re.findall(r"`(\w+/[\w/]+\.[ch])`", text))):
        if not os.path.exists(os.path.join(root, name)):
            wrong.append(f"{ARCHITECTURE} names {name}, which is not there")
    for room in sorted(folders):
        if room.startswith(PAGES_OF) and room not in PAGES_OF:
            wrong += check_page(root, room)
        if [name for name, _ in rows].count(room) != 1:
            wrong.append(f"{ARCHITECTURE} must have one row for `{room}`")
    for room, pages in rows:
        if room not in folders:
            wrong.append(f"{ARCHITECTURE} has a row for `{room}`, which has none in {check_includes.PAGE}")
        for page in re.findall(r"\]\(([^)#]+)", pages):
            if not os.path.exists(os.path.join(root, os.path.dirname(ARCHITECTURE), page)):
                wrong.append(f"{ARCHITECTURE}, row `{room}`: there is no {page}")
    return wrong


def main(argv):
    if len(argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = argv[2] if len(argv) > 2 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        with open(os.path.join(root, check_includes.PAGE), encoding="utf-8") as file:
            folders = check_includes.folders_of(file.read())
        objects = objects_of(os.path.abspath(argv[1]), root)
        graph = calls(objects)
        count, wrong = check_links(objects, folders)
        wrong += check_circles(graph, folders, CIRCLES)
        wrong += check_owners(root)
        wrong += check_caps(root)
        wrong += check_pages(root, folders)
    except (Bad, check_includes.Bad, OSError, subprocess.CalledProcessError) as e:
        print(e, file=sys.stderr)
        return 2
    for line in wrong:
        print(line)
    print(f"{count} rooms, {len(objects)} sources, {len(wrong)} things that do not hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
