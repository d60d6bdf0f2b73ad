"""headers.py - what the public headers declare, for the tests beside it."""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PUBLIC = ["client/zclient.h", "client/zc_safetensors.h", "client/zero/zc_zero.h",
          "client/zero/zc_config.h"]


def paths():
    return [os.path.join(ROOT, p) for p in PUBLIC]


def functions():
    """{name: (type of its result, number of its arguments)} of all that is exported."""
    found = {}
    for path in paths():
        text = re.sub(r"/\*.*?\*/", "", open(path).read(), flags=re.S)
        for result, name, args in re.findall(
                r"^ZC_EXPORT\s+([\w\s*]*?)(\w+)\(([^;]*)\);", text, re.M):
            args = " ".join(args.split())
            found[name] = (" ".join(result.split()), 0 if args == "void" else args.count(",") + 1)
    return found
