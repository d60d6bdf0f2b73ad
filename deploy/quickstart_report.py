"""quickstart_report.py LOSS.jsonl JOBS.json - what a training run did, for people.

LOSS.jsonl is zgpt's, JOBS.json what `zctl jobs -o json` said while it ran. Exit status 1: it did not learn.
"""
import json
import math
import os
import sys

SOURCES = (".c", ".h", ".md", ".py", ".sh", ".txt", ".proto")


def unigram_entropy(root):
    """Nats per byte of the repository's sources when every byte is guessed by its frequency alone."""
    counts = [0] * 256
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith((".", "build")) and f != "out"]
        for name in files:
            if name.endswith(SOURCES):
                with open(os.path.join(folder, name), "rb") as f:
                    for byte in f.read():
                        counts[byte] += 1
    total = sum(counts)
    return -sum(n / total * math.log(n / total) for n in counts if n)


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        steps = [json.loads(line) for line in f]
    with open(sys.argv[2], encoding="utf-8") as f:
        params = json.load(f)["rows"][0]["params"]
    tail = steps[-10:]
    first, last = steps[0]["loss"], sum(s["loss"] for s in tail) / len(tail)
    middle = steps[len(steps) // 4:]
    speed = sorted(s["tokens_per_s"] for s in middle)[len(middle) // 2]
    tiers = steps[-1]["tier_bytes"]
    read = sum(s["nvme_read_bytes"] for s in steps) / len(steps)
    written = sum(s["nvme_written_bytes"] for s in steps) / len(steps)
    entropy = unigram_entropy(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

    print("== what happened")
    print(f"loss            {first:.3f} at the first step, {last:.3f} at the end (mean of the last {len(tail)})")
    print(f"                guessing bytes uniformly gives {math.log(256):.3f}, by their frequency {entropy:.3f}")
    print(f"speed           {speed:.0f} tokens/s (median)")
    for name, value in tiers.items():
        if value > 0:
            print(f"resident        {value / 2**20:10.1f} MiB in {name}")
    print(f"NVMe per step   {read / 2**20:.1f} MiB read, {written / 2**20:.1f} MiB written")
    print(f"per parameter   {read / params:.1f} bytes read, {written / params:.1f} bytes written, each step")
    if not last < 0.9 * entropy:
        print("It did not learn more than the frequency of bytes: something is wrong.")
        return 1
    print("It learned. Log and losses are in out/quickstart/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
