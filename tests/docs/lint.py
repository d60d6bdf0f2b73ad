#!/usr/bin/env python3
"""lint.py [ROOT] - what users read is in plain words, its links lead somewhere, and its tables fit.

MODEL. Texts come from three kinds of files: pages (README, CHANGELOG, docs, deploy, man pages), string literals of the
programs and libraries, and comments of the public headers and docstrings of the Python package. Each text is searched
for the phrases of FORBIDDEN. Relative links of every Markdown page must name a file of the repository, and an anchor a
heading of it. Tables of the pages in NARROW are at most COLUMNS wide.

Exit status: 0; 1 and one line for each finding.
"""
import ast
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COLUMNS = 120

# (pattern, what to write instead)
FORBIDDEN = [
    (r"so manieth", "every Nth"),
    (r"\bis no (option|name|share|number|file|folder|socket|GPU|plugin|backend|JSON)\b", "is not a ..., unknown ..."),
    (r"(?<!there )\bare no (range|number|message)s?\b", "are not a ..."),
    (r"\bthat would do\b", "that would work, that is needed"),
    (r"\banew\b", "again"),
    (r"\bwhoever\b", "any process that, any user who"),
    (r"\bwith a sentence\b", "with an error message"),
    (r"\bis said\b", "is reported, is set"),
]
PAGES = ["README.md", "CHANGELOG.md", "deploy/*.md", "deploy/zshardd.conf", "deploy/zshardd.service", "docs/*.md",
         "docs/how-to/*.md", "docs/reference/*.md", "docs/pytorch/*.md", "docs/man/*.[158]"]
NARROW = ["README.md", "deploy/*.md", "docs/README.md", "docs/tutorial.md", "docs/how-to/*.md", "docs/reference/*.md"]
HEADERS = ["client/*.h", "client/zero/zc_*.h"]
SOURCES = ["base", "client", "daemon", "examples", "kernels", "nvme", "proto"]
PYTHON = ["python/zshard/**/*.py"]
# Texts that a test compares with the code, such as the tables of docs/CONFIG.md, are in both.

STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def files(root, patterns):
    """Paths below root, in order, without what a build made."""
    found = {path for p in patterns for path in glob.glob(os.path.join(root, p), recursive=True)}
    return sorted(os.path.relpath(path, root) for path in found if os.path.isfile(path))


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def c_strings(text):
    """(line, string) of C: literals that follow each other are one, at the line of the first."""
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    text = text.replace("'\"'", "' '")
    found, end = [], -1
    for m in STRING.finditer(text):
        if found and not text[end:m.start()].strip() and end >= 0:
            found[-1][1] += m[1]
        else:
            found.append([text.count("\n", 0, m.start()) + 1, m[1]])
        end = m.end()
    return found


def c_comments(text):
    """(line, comment) of a header, on one line each."""
    return [(text.count("\n", 0, m.start()) + 1, re.sub(r"\s+\*?\s*", " ", m[0]))
            for m in re.finditer(r"/\*.*?\*/", text, re.DOTALL)]


def python_texts(text):
    """(line, text) of all string constants, docstrings among them."""
    return [(node.lineno, node.value) for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def page_texts(text):
    """(line, paragraph): a phrase may be broken over two lines."""
    line, found = 1, []
    for part in re.split(r"(\n\s*\n)", text):
        if part.strip():
            found.append((line, re.sub(r"\s+", " ", part)))
        line += part.count("\n")
    return found


def phrases(path, texts):
    for line, text in texts:
        for pattern, better in FORBIDDEN:
            m = re.search(pattern, text)
            if m:
                yield f"{path}:{line}: '{m[0]}': write: {better}"


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        n = 0
        while (slug if n == 0 else f"{slug}-{n}") in found:
            n += 1
        found.add(slug if n == 0 else f"{slug}-{n}")
    return found


def links(root, path):
    text = re.sub(r"```.*?```", lambda m: re.sub(r"[^\n]", " ", m[0]), read(root, path), flags=re.DOTALL)
    for m in re.finditer(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", m[1]):
            continue
        name, _, anchor = m[1].partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        where = f"{path}:{text.count(chr(10), 0, m.start()) + 1}: link to {m[1]}"
        if not os.path.exists(os.path.join(root, target)):
            yield f"{where}: there is no such file"
        elif anchor and target.endswith(".md") and anchor not in anchors(read(root, target)):
            yield f"{where}: there is no such heading"


def wide(root, path):
    for number, line in enumerate(read(root, path).split("\n"), 1):
        if line.startswith("|") and len(line) > COLUMNS:
            yield f"{path}:{number}: a table of {len(line)} columns: at most {COLUMNS}"


def findings(root):
    for path in files(root, PAGES):
        yield from phrases(path, page_texts(read(root, path)))
    for path in files(root, HEADERS):
        yield from phrases(path, c_comments(read(root, path)))
    for path in files(root, [f"{folder}/**/*.{kind}" for folder in SOURCES for kind in "ch"]):
        yield from phrases(path, c_strings(read(root, path)))
    for path in files(root, PYTHON):
        yield from phrases(path, python_texts(read(root, path)))
    for path in files(root, ["*.md"] + [f"{top}/**/*.md" for top in
                                        SOURCES + ["bench", "deploy", "docs", "python", "tests"]]):
        yield from links(root, path)
    for path in files(root, NARROW):
        yield from wide(root, path)


def main():
    found = list(findings(sys.argv[1] if len(sys.argv) > 1 else ROOT))
    print("\n".join(found) if found else "plain words, whole links, narrow tables")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
