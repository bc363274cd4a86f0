#!/bin/sh
# A sweep on the cores of one machine: every run is a process with one thread. docs/cluster.md.
# Needs data/lift.zarr (robot-rl collect) and runs/lift_bc_s0 (robot-rl train method=bc); options can be added.
exec robot-rl train -m jobs="${JOBS:-2}" task=lift data=data/lift.zarr base=runs/lift_bc_s0 \
    method=residual_chunk,expo seed=0,1,2 device=cpu "$@"
