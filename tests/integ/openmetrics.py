"""openmetrics.py - a strict parser of OpenMetrics 1.0 text, for tests. Standard library only.

It accepts what zctl metrics may print, and nothing else: TYPE, UNIT and HELP before the samples of a family, families
that are not mixed, names that fit the type and the unit, no series twice, numbers, histograms that add up, one EOF at
the end.
"""
import math
import re

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
SAMPLE = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)(?:\{(.*)\})? ([^ ]+)\Z")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|\Z)')
NUMBER = re.compile(r"(\d+(\.\d+)?([eE][-+]?\d+)?|\+Inf)\Z")
SUFFIXES = {"gauge": [""], "counter": ["_total"], "info": ["_info"], "histogram": ["_bucket", "_count", "_sum"]}


class Wrong(Exception):
    """The text is not OpenMetrics, and this is why."""


class Family:
    def __init__(self, name, kind):
        self.name, self.kind, self.unit, self.help = name, kind, None, None
        self.samples = []  # (suffix, {label: value}, number)


def need(condition, why):
    if not condition:
        raise Wrong(why)


def labels_of(text, line):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        need(match, f"labels of {line!r}")
        need(match[1] not in labels, f"a label twice: {line!r}")
        labels[match[1]] = match[2].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")
        at = match.end()
        need(match[3] == "," or at == len(text), f"labels of {line!r}")
        need(match[3] != "," or at < len(text), f"a comma at the end: {line!r}")
    return labels


def number_of(text, line):
    need(NUMBER.match(text), f"not a number: {line!r}")
    return math.inf if text == "+Inf" else float(text)


def check_histogram(family):
    """Buckets of each series ascend and end with +Inf; count and sum belong to them."""
    series = {}
    for suffix, labels, value in family.samples:
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        parts = series.setdefault(key, {"_bucket": [], "_count": None, "_sum": None})
        if suffix == "_bucket":
            need("le" in labels and parts["_count"] is None, f"{family.name}: a bucket without le, or after the count")
            parts["_bucket"].append((number_of(labels["le"], family.name), value))
        else:
            need("le" not in labels and parts[suffix] is None, f"{family.name}{suffix}")
            parts[suffix] = value
    for parts in series.values():
        bounds, counts = zip(*parts["_bucket"])
        need(list(bounds) == sorted(set(bounds)) and bounds[-1] == math.inf, f"{family.name}: bounds {bounds}")
        need(list(counts) == sorted(counts), f"{family.name}: counts fall: {counts}")
        need(parts["_count"] == counts[-1] and parts["_sum"] is not None, f"{family.name}: {parts}")
        need((parts["_sum"] > 0) <= (parts["_count"] > 0), f"{family.name}: a sum of nothing")


def check_family(family):
    need(family.help is not None, f"{family.name} has no HELP")
    need(family.samples, f"{family.name} has no samples")
    if family.kind == "histogram":
        check_histogram(family)
    if family.kind == "info":
        need(all(value == 1 for _, _, value in family.samples), f"{family.name}: an info that is not 1")
    if family.unit:
        need(family.name.endswith("_" + family.unit), f"{family.name} does not end with {family.unit}")
    else:
        need(not re.search(r"_(seconds|bytes)\Z", family.name), f"{family.name} has no UNIT")


def metadata(line, families, current):
    """The family that a line with '#' is about."""
    words = line.split(" ", 3)
    need(len(words) >= 3 and words[1] in ("TYPE", "UNIT", "HELP"), f"not metadata: {line!r}")
    word, name, rest = words[1], words[2], words[3] if len(words) > 3 else ""
    if word == "TYPE":
        need(NAME.match(name) and rest in SUFFIXES, f"{line!r}")
        need(name not in families, f"{name} comes twice")
        families[name] = Family(name, rest)
        return families[name]
    need(current and current.name == name and not current.samples, f"{line!r} is not in front of its samples")
    if word == "UNIT":
        need(current.unit is None and rest, f"{line!r}")
        current.unit = rest
    else:
        need(current.help is None, f"HELP of {name} twice")
        current.help = rest
    return current


def parse(text):
    """{name: Family}, or Wrong."""
    need(text.endswith("# EOF\n"), "no EOF at the end")
    families, current, seen = {}, None, set()
    for line in text[:-len("# EOF\n")].splitlines():
        need(line and line != "# EOF", "an empty line, or EOF twice")
        if line.startswith("#"):
            current = metadata(line, families, current)
            continue
        match = SAMPLE.match(line)
        need(match and current, f"not a sample: {line!r}")
        suffix = next((s for s in SUFFIXES[current.kind] if match[1] == current.name + s), None)
        need(suffix is not None, f"{line!r} does not belong to {current.name}")
        labels = labels_of(match[2] or "", line)
        need(match[2] is None or labels, f"empty labels: {line!r}")
        key = (match[1], tuple(sorted(labels.items())))
        need(key not in seen, f"a series twice: {line!r}")
        seen.add(key)
        current.samples.append((suffix, labels, number_of(match[3], line)))
    for family in families.values():
        check_family(family)
    return families
