"""Time of a whole decision of `residual_chunk`, run by torch and by what could replace it.

A decision is the base's samples, their residuals, the critics and the choice. Decisions are made at 20 Hz,
the ways in turns, with random weights of the size of Lift's. ONNX Runtime is measured if `onnxruntime` and
`onnxscript` are installed.

    python benchmarks/decision.py [decisions of each]
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.bases.base_policy import Chunk
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.finetuned.candidates import CandidatesSpec
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.critic import ValueSpec
from robot_rl.policies.nets.encoder import EncoderSpec

STATE, ACTION, SAMPLES, PERIOD = 19, 7, 8, 0.05
WARM_UPS = 20


class Decision(nn.Module):
    """Observation [1, To, S] and noise [1, N, Hn, Dn] -> the chunk with the highest value [1, h, A]."""

    def __init__(self, networks: ResidualChunk) -> None:
        super().__init__()
        self.networks = networks

    def forward(self, state: Tensor, noise: Tensor) -> Tensor:
        networks = self.networks
        sampled = networks.base.sample({"state": state}, noise=noise, num_samples=SAMPLES)
        samples = Chunk(sampled.actions[:, :, : networks.base.spec.execute], noise)
        features = networks.encoder({"state": state[:, -1]})
        chunks = networks.candidates(features, samples)
        values = networks.values(features, chunks)
        return chunks[0, values[0].argmax(0)][None]


def decision() -> tuple[Decision, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    base = DiffusionPolicy(DiffusionConfig(width=128, inference_steps=5), STATE, ACTION)
    spec = CandidatesSpec(
        encoder=EncoderSpec(STATE),
        value=ValueSpec("mse", 0.0, 1.0),
        hidden=(256, 256, 256),
        scale=(0.2,) * ACTION,
        num_critics=10,
        layer_norm=True,
        candidates=SAMPLES,
        uncertainty_penalty=0.56,
    )
    state = torch.randn(1, base.spec.obs_steps, STATE)
    return Decision(ResidualChunk(base, spec)).eval(), (state, base.draw_noise(1, SAMPLES))


def onnx_runtime(module: Decision, inputs: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    import io

    import onnxruntime

    names, file = ["state", "noise"], io.BytesIO()
    program = torch.onnx.export(module, inputs, input_names=names, dynamo=True, verbose=False)
    assert program is not None
    program.save(file)  # type: ignore[arg-type]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


@torch.no_grad()
def main(count: int) -> None:
    torch.set_num_threads(1)
    module, inputs = decision()
    traced, compiled = torch.jit.trace(module, inputs), torch.compile(module)
    ways: dict[str, Callable[[], Tensor]] = {
        "eager": lambda: module(*inputs),
        "traced": lambda: traced(*inputs),
        "compiled": lambda: compiled(*inputs),
    }
    try:
        ways["onnx runtime"] = onnx_runtime(module, inputs)
    except ImportError as error:
        print(f"without onnx runtime: {error}")
    reference = module(*inputs)
    largest = {name: float((way() - reference).abs().max()) for name, way in ways.items()}
    for way in [*ways.values()] * WARM_UPS:
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    used = dict.fromkeys(ways, 0.0)
    for _ in range(count):
        for name, way in ways.items():
            time.sleep(PERIOD)
            began, cpu = time.perf_counter(), time.process_time()
            way()
            used[name] += time.process_time() - cpu
            times[name].append(1e3 * (time.perf_counter() - began))
    for name, taken in times.items():
        p50, p99 = np.percentile(taken, [50, 99])
        cpu = 1e3 * used[name] / count
        print(f"{name:13} p50 {p50:6.2f}  p99 {p99:6.2f}  CPU {cpu:6.2f} ms, differs by {largest[name]:.1g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
