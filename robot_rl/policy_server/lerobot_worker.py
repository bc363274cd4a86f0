"""Runs a LeRobot policy in a Python interpreter that has lerobot; answers over its standard input and output.

Usage: `python -I lerobot_worker.py <directory> <device> <threads>`, started by `lerobot_process.py`. That
interpreter needs no robot-rl. It may be Python 3.10. The program sends what the policy is, then answers one
request after the other, until its input ends.

A message is the length of a JSON map, the map, and the bytes of the arrays that the map lists. No pickle.
B observations, To observation steps, R = B·N rows of N samples each, H steps of a chunk, A action size.
"""

import inspect
import json
import math
import os
import struct
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Header = dict[str, Any]
"""A JSON map; of a request `prompts`, `seed`, of an answer `policy` or `error`."""
Arrays = dict[str, NDArray[Any]]

_LENGTH = struct.Struct("<I")
_MAX_HEADER = 128 * 1024**2
"""Longest map, bytes: it has the instructions of all observations."""
_MAX_BYTES = 8 * 1024**3
"""Largest array, bytes."""
_TYPES = ("|u1", "<f4")
_MAX_PASS = 64
"""Most rows in one pass through the policy."""
_REPEATABLE = 1e-3
"""Largest difference between answers to the same noise, in units of the difference that other noise makes."""


class BrokenMessage(ValueError):
    """Bytes that are no message."""


def send(stream: BinaryIO, header: Header, arrays: Arrays | None = None) -> None:
    """Write a message. Raises OSError if the other side is gone."""
    listed = [
        {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
        for name, array in (arrays or {}).items()
    ]
    packed = json.dumps({**header, "arrays": listed}).encode()
    stream.write(_LENGTH.pack(len(packed)) + packed)
    for array in (arrays or {}).values():
        stream.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    stream.flush()


def receive(stream: BinaryIO) -> tuple[Header, Arrays] | None:
    """Read a message; None if the other side has closed.

    Raises:
        BrokenMessage: if it is none, or ends too early.
    """
    prefix = stream.read(_LENGTH.size)
    if not prefix:
        return None
    length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else _MAX_HEADER + 1
    if length > _MAX_HEADER:
        raise BrokenMessage("the length of a message cannot be")
    try:
        header = json.loads(_exactly(stream, length))
        listed = header.pop("arrays")
        entries = [(str(each["name"]), str(each["dtype"]), list(each["shape"])) for each in listed]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenMessage(f"no message: {error!r:.200}") from None
    arrays = {}
    for name, kind, shape in entries:
        counts = all(type(size) is int and size >= 0 for size in shape)
        if kind not in _TYPES or not counts or len(shape) > 8:
            raise BrokenMessage(f"an array of type {kind!r:.40} and shape {shape!r:.80}")
        dtype = np.dtype(kind)
        size = math.prod(shape) * dtype.itemsize
        if size > _MAX_BYTES:
            raise BrokenMessage(f"an array of {size} bytes")
        arrays[name] = np.frombuffer(_exactly(stream, size), dtype).reshape(shape)
    return header, arrays


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise BrokenMessage("a message ended too early")
    return data


# ---- in the interpreter that has lerobot ------------------------------------------------------------------


class Policy:
    """A LeRobot policy with its saved pre- and postprocessor."""

    def __init__(self, directory: str, device: str) -> None:
        """Load it from a local directory; raises whatever lerobot raises."""
        import torch
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
        from lerobot.processor import TokenizerProcessorStep

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        config = PreTrainedConfig.from_pretrained(directory, local_files_only=True)
        config.device = device
        # The directory has all weights. These options would download others first, to be overwritten.
        if getattr(config, "pretrained_backbone_weights", None):
            config.pretrained_backbone_weights = None
        if of_pretrained := getattr(config, "load_vlm_weights", False):
            config.load_vlm_weights = False
        self.config, self.device = config, torch.device(device)
        # Strict: lerobot's default leaves weights that are missing random, with a warning.
        self.policy = get_policy_class(config.type).from_pretrained(directory, config=config, strict=True)
        if of_pretrained:
            _keep_types(self.policy, Path(directory) / "model.safetensors")
        self.before, self.after = make_pre_post_processors(
            config,
            pretrained_path=directory,
            preprocessor_overrides={"device_processor": {"device": device}},
        )
        queues = getattr(self.policy, "_queues", None) or {}
        self.remembers = "observation.state" in queues or "observation.images" in queues
        """Whether the policy keeps a history of observations itself."""
        self.reads_prompt = any(isinstance(step, TokenizerProcessorStep) for step in self.before.steps)
        if config.n_obs_steps > 1 and not self.remembers:
            raise ValueError(f"a {config.type} policy with n_obs_steps={config.n_obs_steps} is not known")
        self.features = {
            name: [feature.type.value, list(feature.shape)]
            for name, feature in config.input_features.items()
            if ".empty_camera_" not in name  # cameras that the policy does without
        }

    def describe(self) -> Header:
        """What the policy observes and returns, tried out on an observation of zeros."""
        first = self.predict(self._zeros(), ["probe"], seed=0)
        noise, deterministic = self._tried_noise(), False
        if noise is None:
            deterministic = bool(np.array_equal(self.predict(self._zeros(), ["probe"], seed=1), first))
        return {
            "type": self.config.type,
            "features": self.features,
            "obs_steps": self.config.n_obs_steps,
            "prompt": self.reads_prompt,
            "shape": list(first.shape[1:]),
            "execute": min(int(self.config.n_action_steps), first.shape[1]),
            "noise": noise,
            "deterministic": deterministic,
            "device": str(self.device),
        }

    def predict(
        self,
        obs: Arrays,
        prompts: list[str],
        *,
        noise: NDArray[np.float32] | None = None,
        seed: int | None = None,
    ) -> NDArray[np.float32]:
        """Chunks [R, H, A] in the units of the policy's dataset.

        Args:
            obs: by LeRobot's names, states [B, To, S], images uint8 [B, To, H, W, 3].
            prompts: B texts, for a policy that reads them.
            noise: float32 [R, Hn, Dn]; drawn by the policy without it.
            seed: of what the policy draws.
        """
        import torch

        if seed is not None:
            torch.manual_seed(seed)
        count = len(next(iter(obs.values())))
        rows = np.arange(count) if noise is None else np.repeat(np.arange(count), len(noise) // count)
        amp = self.config.use_amp and self.device.type == "cuda"
        chunks = []
        with torch.inference_mode(), torch.autocast("cuda") if amp else nullcontext():
            for at in range(0, len(rows), _MAX_PASS):
                part = rows[at : at + _MAX_PASS]
                given = None if noise is None else noise[at : at + _MAX_PASS]
                texts = [prompts[row] for row in part] if self.reads_prompt else []
                chunks.append(self._pass({name: each[part] for name, each in obs.items()}, texts, given))
        return np.concatenate(chunks)

    def _pass(
        self, obs: Arrays, prompts: list[str], noise: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        import torch

        batch: dict[str, Any] = {name: self._tensor(name, array) for name, array in obs.items()}
        batch["task"] = prompts if self.reads_prompt else [""] * len(next(iter(obs.values())))
        batch = self.before(batch)
        # The preprocessor adds an empty one, which policies with histories would read.
        batch.pop("action", None)
        if self.remembers:
            self._remember(batch)
        more = {} if noise is None else {"noise": torch.from_numpy(noise.copy()).to(self.device)}
        # Not `select_action`: it has a queue of actions.
        chunk = self.after(self.policy.predict_action_chunk(batch, **more))
        return chunk.float().cpu().numpy()

    def _tensor(self, name: str, array: NDArray[Any]) -> "torch.Tensor":
        """An observed array [B, To, …] as lerobot's; images are [B, To, 3, H, W] in [0, 1]."""
        import torch

        tensor = torch.from_numpy(array.copy()).to(self.device)
        if self.features[name][0] == "VISUAL":
            tensor = tensor.movedim(-1, -3).contiguous().float() / 255
        return tensor if self.remembers else tensor[:, 0]

    def _remember(self, batch: dict[str, Any]) -> None:
        """Fill the policy's histories with the frames of this batch [B, To, …] alone."""
        import torch

        self.policy.reset()
        if images := [batch[name] for name in self.config.image_features]:
            batch["observation.images"] = torch.stack(images, dim=-4)
        for name, queue in self.policy._queues.items():
            if name in batch and name != "action":
                queue.extend(batch[name].unbind(1))

    # ---- trying out ----------------------------------------------------------------------------------

    def _zeros(self) -> Arrays:
        steps, zeros = self.config.n_obs_steps, {}
        for name, (kind, shape) in self.features.items():
            visual = kind == "VISUAL"
            whole = (1, steps, *shape[1:], shape[0]) if visual else (1, steps, *shape)
            zeros[name] = np.zeros(whole, np.uint8 if visual else np.float32)
        return zeros

    def _tried_noise(self) -> list[int] | None:
        """Shape [Hn, Dn] of a noise on which alone the actions depend; None if there is none."""
        shape = _noise_shape(self.config)
        known = inspect.signature(self.policy.predict_action_chunk).parameters.values()
        if shape is None or not any(each.name == "noise" or each.kind is each.VAR_KEYWORD for each in known):
            return None
        draw = np.random.default_rng(0)
        one, other = (draw.standard_normal((1, *shape)).astype(np.float32) for _ in range(2))
        # Of a policy that draws noise besides the given one, the second answer is another.
        first, again, changed = (
            self.predict(self._zeros(), ["probe"], noise=noise, seed=seed)
            for noise, seed in ((one, 0), (one, 1), (other, 1))
        )
        change = float(np.abs(changed - again).max())
        same = float(np.abs(again - first).max())
        return list(shape) if change > 0 and same <= _REPEATABLE * change else None


def _keep_types(policy: "torch.nn.Module", weights: Path) -> None:
    """Compute with the types of the saved weights: a VLM that is not downloaded is float32, not bfloat16."""
    import torch
    from safetensors import safe_open

    types = {"BF16": torch.bfloat16, "F16": torch.float16}
    with safe_open(weights, "pt") as file:
        saved = {name: types.get(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        if dtype := saved.get(name):
            parameter.data = parameter.data.to(dtype)


def _noise_shape(config: Any) -> tuple[int, int] | None:
    """Shape [Hn, Dn] of the noise that policies of a type start from."""
    if config.type == "diffusion":
        return config.horizon, config.action_feature.shape[0]
    if config.type in ("smolvla", "pi0", "pi05"):
        return config.chunk_size, config.max_action_dim
    return None


def serve(policy: Policy, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    send(answers, {"policy": policy.describe()})
    while (message := receive(requests)) is not None:
        header, arrays = message
        noise = arrays.pop("noise", None)
        try:
            chunk = policy.predict(arrays, header["prompts"], noise=noise, seed=header["seed"])
        except Exception as error:  # Told to the client; the next request may be all right.
            traceback.print_exc()
            send(answers, {"error": _line(error)})
        else:
            send(answers, {}, {"actions": chunk})


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


def main(directory: str, device: str, threads: str) -> int:
    """Run; returns the exit code."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What lerobot prints is no message.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    try:
        import torch

        torch.set_num_threads(int(threads))
        policy = Policy(str(Path(directory).resolve()), device)
        serve(policy, requests, answers)
    except BrokenPipeError:
        return 0  # The server is gone.
    except Exception as error:
        send(answers, {"error": _line(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
