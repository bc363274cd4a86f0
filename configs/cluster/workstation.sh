#!/bin/sh
# One run on a machine with many cores: the learner, on the GPU if there is one, and workers that simulate.
# docs/cluster.md. Needs data/lift.zarr and runs/lift_bc_s0; options can be added.
set -eu
cores=$(nproc)
workers=${WORKERS:-$((cores > 4 ? cores - 2 : 2))}
RAY_ADDRESS=127.0.0.1:${PORT:-6379}
export RAY_ADDRESS
# A cluster of this machine alone, which ends with this script; it listens to no network and has no dashboard.
ray start --head --block --node-ip-address=127.0.0.1 --port="${RAY_ADDRESS#*:}" --num-cpus="$workers" \
    --include-dashboard=false --disable-usage-stats >"${LOG:-ray.log}" 2>&1 &
cluster=$!
run=
trap 'kill "$cluster"; wait "$cluster" || true' EXIT
trap '[ -z "$run" ] || { kill -TERM "$run"; wait "$run" || true; }; exit 143' INT TERM HUP
until ray status >/dev/null 2>&1; do
    kill -0 "$cluster" || { echo "Ray did not start: see ${LOG:-ray.log}" >&2; exit 1; }
    sleep 1
done
# In a session of its own it gets one signal, by which it saves; a terminal's Ctrl-C would be a second one.
setsid robot-rl train workers=ray workers.count="$workers" method.num_envs=$((4 * workers)) \
    task=lift data=data/lift.zarr base=runs/lift_bc_s0 method=residual_chunk "$@" &
run=$!
wait "$run"
