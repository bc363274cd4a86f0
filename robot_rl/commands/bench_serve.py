"""Measure the policy server: the round trip of a request without a policy, and answered requests per second.

All figures belong to the machine that is printed; on a busy one the times are too long.
"""

import json
from dataclasses import asdict, dataclass

import torch

from robot_rl.bench.serve import CLIENTS, measure
from robot_rl.machine import describe_machine


@dataclass
class Config:
    seconds: float = 5.0
    """Duration of each figure in s."""
    json: bool = False
    """End with one line of JSON."""


def run(config: Config) -> None:
    speed = measure(config.seconds)
    print(f"{describe_machine()['cpu']}, torch {torch.__version__}")
    trip = speed.round_trip_ms
    print(f"round trip without a policy    p50 {trip['p50']:.2f} ms, p99 {trip['p99']:.2f} ms")
    print(f"answered for one client        {speed.single_per_s:,.0f} /s")
    ratio = speed.batched_per_s / speed.single_per_s
    print(f"answered for {CLIENTS} clients         {speed.batched_per_s:,.0f} /s, {ratio:.2f} times as many")
    if config.json:
        print(json.dumps(asdict(speed)), flush=True)
