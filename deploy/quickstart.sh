#!/usr/bin/env bash
# quickstart.sh - from a bare Debian 12 to a GPT that learns under ZeRO-3 with its state on NVMe.
#
# Installs what is missing (as root), builds, starts a daemon whose host budget is smaller than the
# model's states, trains with two ranks, stops the daemon and prints what happened. Leaves build/ and
# out/quickstart/ behind: loss.jsonl has one object a step, and zshardd.log is the daemon's log.
#
# STEPS=N trains longer or shorter (default 200).
set -euo pipefail
cd "$(dirname "$0")/.."

steps=${STEPS:-200}
ranks=2
# The model: 4 blocks of width 256 over bytes, 3.3 M parameters. In fp32 its parameters, gradients and AdamW
# state are 16 bytes a parameter, 50 MiB: more than the host budget.
model=(--layers 4 --heads 8 --width 256 --seq 128 --batch 16 --micro-batch 8)
training=(--lr 1e-3 --clip 1.0 --weight-decay 0.1 --seed 1)
host_bytes=40M
nvme_bytes=256M

out=out/quickstart
mkdir -p "$out"
run=$(mktemp -d /tmp/zshard-quickstart.XXXXXX) # the socket and the data file
daemon=
finish() {
    if [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null; then
        kill -TERM "$daemon"
        wait "$daemon" || true
    fi
    rm -rf "$run"
}
trap finish EXIT

echo "== packages"
deploy/install-deps.sh build

echo "== build (log: $out/build.log)"
{
    cmake --preset release
    cmake --build --preset release --target zshardd zctl zgpt
} >"$out/build.log" 2>&1 || { tail -n 40 "$out/build.log"; exit 1; }
bin=build/bin

echo "== daemon: host budget $host_bytes, NVMe budget $nvme_bytes"
"$bin/zshardd" --socket "$run/zshard.sock" --data "$run/data" \
    --host-bytes "$host_bytes" --nvme-bytes "$nvme_bytes" >"$run/ready" 2>"$out/zshardd.log" &
daemon=$!
for _ in $(seq 100); do
    grep -q '^ready ' "$run/ready" && break
    kill -0 "$daemon" 2>/dev/null || { cat "$out/zshardd.log"; exit 1; }
    sleep 0.1
done
cat "$run/ready"
export ZSHARD_SOCKET="$run/zshard.sock"

echo "== training: $steps steps, $ranks ranks, ZeRO-3, parameters and optimizer state offloaded to NVMe"
rm -f "$out/loss.jsonl"
mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$bin/zgpt" --job quickstart \
    --stage 3 --offload nvme --steps "$steps" "${model[@]}" "${training[@]}" \
    --jsonl "$out/loss.jsonl" &
trainer=$!
# Shows the tiers and the job while it runs, after a few steps.
for _ in $(seq 600); do
    kill -0 "$trainer" 2>/dev/null || break
    [ -s "$out/loss.jsonl" ] && [ "$(wc -l <"$out/loss.jsonl")" -ge 3 ] && break
    sleep 0.1
done
"$bin/zctl" tiers
"$bin/zctl" jobs -o json >"$out/jobs.json"
wait "$trainer"

echo "== stopping the daemon"
kill -TERM "$daemon"
wait "$daemon"
daemon=

python3 deploy/quickstart_report.py "$out/loss.jsonl" "$out/jobs.json"
