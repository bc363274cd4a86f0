"""Options of `robot-rl train`, and what is wrong with them before anything is loaded."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from robot_rl.data.dataset import Dataset
from robot_rl.envs.robot_task import RobotTaskConfig
from robot_rl.envs.task import TaskConfig
from robot_rl.hil.config import SCRIPTED, HilConfig
from robot_rl.hil.config_check import check_hil_config
from robot_rl.imagination.config import LatentModelConfig, RemoteModelConfig, StateModelConfig
from robot_rl.learning.config import STATE_ALONE, STEPS
from robot_rl.learning.distributed import AccelerateConfig, launched_processes
from robot_rl.methods.method import OfflineMethod, OffPolicyMethod
from robot_rl.methods.registry import METHODS
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.diffusion import DiffusionConfig
from robot_rl.policies.registry import BASES
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.training.context import RunBase
from robot_rl.training.trackers import check_tracker
from robot_rl.workers.config import WorkersConfig, check_workers_config

GROUPS: dict[str, dict[str, type]] = {
    "task": {"robot": RobotTaskConfig, "*": TaskConfig},
    "method": {name: method.config_type for name, method in METHODS.items()},
    "hil": {"on": HilConfig},
    "imagination": {"state": StateModelConfig, "latent": LatentModelConfig, "remote": RemoteModelConfig},
    "workers": {"ray": WorkersConfig},
    "accelerate": {"on": AccelerateConfig},
    "base": {
        **{name: base.config for name, base in BASES.items()},
        "run": RunBase,
        "remote": RemoteConfig,
    },
}


@dataclass
class Config:
    task: Any = None
    """Task to learn; `robot` for a real robot's, of which data=… says what is observed and done."""
    method: Any = None
    """Training method."""
    base: Any = None
    """Base policy to train (method=bc), or the run of one to improve or to train further, base=runs/…, or
    `remote` for one behind a policy server."""
    hil: Any = None
    """`on` for a separate actor process and human interventions."""
    imagination: Any = None
    """`state` for imagined transitions from a world model of states, learned during training, `latent` for
    those of a model of the base's features (method.encoder=base), or `remote` for those of a model in another
    process."""
    workers: Any = None
    """`ray` for environments in processes on the machines of a Ray cluster."""
    accelerate: Any = None
    """`on` to train a base policy in several processes, which torchrun starts, or with mixed precision."""
    data: str | None = None
    """Dataset of demonstrations."""
    name: str = "${task.name}_${method.name}_s${seed}"
    """Name of the run's directory."""
    runs_dir: str = "runs"
    """Folder of the runs."""
    seed: int = 0
    """Seed of everything random."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""
    threads: int = 1
    """CPU threads of torch; small networks gain little from more."""
    log_every: int = 200
    """Steps between rows of learning metrics."""
    checkpoint_every: int = 5000
    """Steps between checkpoints."""
    eval_every: int = 0
    """Environment steps between evaluations on the task's validation states; 0 for none."""
    eval_episodes: int = 100
    """Number of validation states for such an evaluation."""
    save_every: int = 0
    """Environment steps, of method=bc updates, between policies saved in `policies/`, for `robot-rl eval
    saved=true`; 0 for none."""
    logger: str = "tensorboard"
    """Where metrics are shown besides metrics.csv: `tensorboard`, `wandb` or `trackio`."""
    asynchronous: str = "off"
    """How a slow base acts, `naive`, `blend`, `prefix` or `guided`: what RL adds learns with the delay."""
    delay: int = 0
    """With asynchronous: control steps from an observation to the chunk that is computed from it."""
    accept: list[str] = field(default_factory=list)
    """Accepted differences between the recorded and the current environment, e.g. [versions]; none of what is
    observed."""

    def __post_init__(self) -> None:
        check_tracker(self.logger)
        for name in ("log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: choose 1 or more steps")
        for name in ("eval_every", "save_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: it cannot be negative")
        AsyncOptions(self.asynchronous, self.delay)


def output_directory(config: Config) -> Path:
    """Directory of the run."""
    return Path(config.runs_dir) / config.name


def check_options(config: Config) -> None:
    """Raises ValueError for options that do not go together."""
    if config.asynchronous != "off":
        _check_asynchronous(config)
    _check_processes(config)
    if observed := [name for name in config.accept if name.split(".")[0] == "observation_spec"]:
        raise ValueError(
            f"accept=[{observed[0]}]: what a policy observes cannot differ; choose task=… with the dataset's "
            "state_keys, cameras and image_size, or make another dataset"
        )
    if config.hil:
        check_hil_config(config.hil, config.method)
    _check_robot_task(config)
    if config.imagination and not issubclass(METHODS[config.method.name], OffPolicyMethod):
        raise ValueError(
            f"method={config.method.name} does not learn from a replay: leave imagination out, or use "
            "residual_chunk, expo, dsrl_na or residual"
        )
    if config.imagination and config.hil and config.hil.takeover_fails:
        raise ValueError(
            "hil.takeover_fails=true ends episodes where a person takes over, which a world model does not "
            "know: leave it or imagination out"
        )
    acts_elsewhere = config.hil or (config.workers and not config.workers.lockstep)
    if config.imagination and config.imagination.planning and acts_elsewhere:
        raise ValueError(
            "imagination.planning=true needs the model where the policy acts, which is another process here: "
            "leave it out"
        )
    if config.hil and config.workers:
        raise ValueError("hil=on has its own actors, each of which drives one arm: leave workers out")
    method = METHODS[config.method.name]
    if not issubclass(method, OfflineMethod):
        if config.workers:
            check_workers_config(config.workers, config.method, config.base)
        return
    if config.workers:
        raise ValueError(f"method={config.method.name} takes no environment steps: leave workers out")
    if config.eval_every:
        raise ValueError(
            f"eval_every counts environment steps, and method={config.method.name} takes none: leave it out, "
            "and measure the result with `robot-rl eval`"
        )
    if not method.acts and config.base not in (None, DiffusionConfig()):
        raise ValueError(f"method={config.method.name} trains no policy, and needs no base: leave it out")
    if config.save_every and not method.acts:
        raise ValueError(
            f"save_every is for policies, and method={config.method.name} trains none: leave it out"
        )


def _check_robot_task(config: Config) -> None:
    method = METHODS[config.method.name]
    if not isinstance(config.task, RobotTaskConfig):
        acts = not issubclass(method, OfflineMethod) or method.acts
        recorded = Dataset(Path(config.data)).environment if config.data and acts else {"env": ""}
        if "env" not in recorded and not config.accept:
            raise ValueError(
                f"dataset {config.data} is of the robot {recorded['robot']}, and task={config.task.name} is "
                "simulated: add task=robot"
            )
        return
    if not config.data:
        raise ValueError("task=robot takes observations and actions from a dataset of the robot: add data=…")
    if issubclass(method, OfflineMethod):
        return
    if not config.hil:
        raise ValueError(
            "task=robot has no simulation to act in: add hil=on hil.robot=… (docs/interventions.md)"
        )
    if config.hil.operator == SCRIPTED:
        raise ValueError("hil.operator=scripted is an expert of simulated tasks: choose a device, or none")
    if config.eval_every:
        raise ValueError("eval_every evaluates in simulation, and task=robot has none: leave it out")


def _check_processes(config: Config) -> None:
    method = METHODS[config.method.name]
    distributes = issubclass(method, OfflineMethod) and method.distributes
    if config.accelerate and not distributes:
        raise ValueError(
            f"accelerate=on trains base policies (method=bc), not method={config.method.name}: leave it out"
        )
    if not config.accelerate and (count := launched_processes()) > 1:
        advice = "add accelerate=on" if distributes else f"start method={config.method.name} without torchrun"
        raise ValueError(f"{count} processes were started (WORLD_SIZE), which would train the same: {advice}")


def _check_asynchronous(config: Config) -> None:
    name = config.method.name
    if issubclass(METHODS[name], OfflineMethod):
        raise ValueError(
            f"asynchronous={config.asynchronous} is for methods that act, method={name} learns from data: "
            "leave it out here, and give it to `eval` and to the training around this base"
        )
    if config.workers and not config.workers.lockstep:
        raise ValueError("asynchronous=… is not there with workers that act yet: add workers.lockstep=true")
    if config.imagination:
        raise ValueError(
            "imagination asks the base at imagined states, without a delay: leave it or asynchronous=… out"
        )


def resolved(config: Config) -> dict[str, Any]:
    """Content of the run's `config.yaml`."""
    content = asdict(config)
    method = METHODS[config.method.name]
    if issubclass(method, OfflineMethod) and not method.acts:
        content["base"] = None  # what configs/train.yaml chooses
    if config.asynchronous == "off":
        # Runs of earlier versions have no such options.
        del content["asynchronous"], content["delay"]
    if config.hil and config.hil.actors == 1:
        del content["hil"]["actors"]
    if not content["task"].get("randomize", True):
        del content["task"]["randomize"]
    if content["method"].get("windows") == STEPS:
        del content["method"]["windows"]
    if config.method.name == "residual_ppo" and content["method"]["encoder"] == STATE_ALONE:
        del content["method"]["encoder"]
    if (content["base"] or {}).get("encoder") == "conv":
        del content["base"]["encoder"]
    if config.workers and config.workers.lockstep:
        content["workers"] = None  # any number of them, and none, compute the same
    if config.data is not None:
        # So that a run is not resumed with a dataset that has changed.
        content["data_sha256"] = Dataset(Path(config.data)).sha256
    if content["method"].get("replay"):
        content["replay_sha256"] = Dataset(Path(content["method"]["replay"])).sha256
    elif "replay" in content["method"]:
        # Runs of earlier versions have no such options.
        del content["method"]["replay"], content["method"]["replay_ratio"]
    return content
