#!/usr/bin/env python3
"""bind.py LIBRARY CC - the Python package binds every function that the library exports, with as many
arguments as the header says, and its structs are laid out as the compiler lays them out."""
import ctypes
import os
import subprocess
import sys
import tempfile

import headers

sys.path.insert(0, os.path.join(headers.ROOT, "python"))
import zshard  # noqa: E402  found by the line above


def check_functions(lib):
    """The number of what is wrong; each is printed."""
    declared, wrong = headers.functions(), 0
    for name in sorted(set(declared) ^ set(zshard.PROTOTYPES)):
        print(f"{name} is only in {'the headers' if name in declared else 'zshard/_c.py'}")
        wrong += 1
    for name, (result, nargs) in declared.items():
        if name not in zshard.PROTOTYPES:
            continue
        bound, args = zshard.PROTOTYPES[name]
        kinds = {"void": [None], "int": [ctypes.c_int], "short": [ctypes.c_short], "uint64_t": [ctypes.c_uint64],
                 "size_t": [ctypes.c_size_t], "bool": [ctypes.c_bool], "double": [ctypes.c_double],
                 "const char *": [ctypes.c_char_p], "void *": [ctypes.c_void_p]}
        fits = bound in kinds[result] if result in kinds else hasattr(bound, "contents")
        if not fits or len(args) != nargs:
            print(f"{name}: the header says {result} of {nargs} arguments, zshard/_c.py {bound} of "
                  f"{len(args)}")
            wrong += 1
        if not ctypes.cast(getattr(lib, name), ctypes.c_void_p).value:
            print(f"{name} is at address 0")
            wrong += 1
    return wrong


def layout_here():
    for s in zshard.STRUCTS:
        yield f"{s.__name__} {ctypes.sizeof(s)}"
        for field, _ in s._fields_:
            at = getattr(s, field)
            yield f"{s.__name__}.{field} {at.offset} {at.size}"


def layout_of_compiler(cc):
    lines = []
    for s in zshard.STRUCTS:
        c = f"struct {s.__name__}"
        lines.append(f'printf("{s.__name__} %zu\\n", sizeof({c}));')
        for field, _ in s._fields_:
            lines.append(f'printf("{s.__name__}.{field} %zu %zu\\n", offsetof({c}, {field}), '
                         f'sizeof((({c} *)0)->{field}));')
    includes = "".join(f'#include "{p}"\n' for p in headers.paths())
    source = (f"#include <stddef.h>\n#include <stdio.h>\n{includes}"
              f"int main(void) {{ {' '.join(lines)} return 0; }}\n")
    with tempfile.TemporaryDirectory() as d:
        program = os.path.join(d, "layout")
        subprocess.run([cc, "-x", "c", "-I" + os.path.join(headers.ROOT, "client"), "-o", program,
                        "-"], input=source, text=True, check=True)
        return subprocess.run([program], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.splitlines()


def check_calls(lib):
    """A few that need no daemon: they are callable as bound."""
    try:
        zshard.Client("/tmp/zshard-no-such-socket", lib=lib)
        print("a client of a socket that does not exist")
        return 1
    except zshard.Error as e:
        if e.rc != -107 or "/tmp/zshard-no-such-socket" not in str(e):
            print(f"refused with {e.rc} '{e}'")
            return 1
    norm, three = zshard.zc_norm(), zshard.zc_norm()
    three.sum_of_squares[40] = 9  # bit 320 counts 1
    lib.zc_norm_merge(ctypes.byref(norm), ctypes.byref(three))
    options = zshard.zc_zero_options()
    lib.zc_zero_defaults(ctypes.byref(options))
    if (lib.zc_norm_value(ctypes.byref(norm)) != 3.0 or options.micro_steps != 1 or
            options.beta2 != 0.95 or lib.zc_strerror(-28) != b"-ENOSPC: it does not fit" or
            lib.zc_st_dtype_name(256 + 0) != b"BOOL"):
        print("a function does not answer as it should")
        return 1
    return 0


def main():
    library, cc = sys.argv[1:3]
    if os.environ.get("ZSHARD_SANITIZE"):
        print("skipped: python does not load a library with sanitizers")
        return 77
    lib = zshard.load(library)
    wrong = check_functions(lib) + check_calls(lib)
    here, there = list(layout_here()), layout_of_compiler(cc)
    for a, b in zip(here, there):
        if a != b:
            print(f"zshard/_c.py: {a}; the compiler: {b}")
            wrong += 1
    print(f"{len(zshard.PROTOTYPES)} functions, {len(zshard.STRUCTS)} structs")
    return 1 if wrong or len(here) != len(there) else 0


sys.exit(main())
