"""Export a policy as a bundle, for `deploy` and `serve` on another machine.

A bundle is one directory: the weights of the policy and its base, what it observes and does, optionally the
robot that it is for and a success classifier, versions, licences, and a fingerprint. Its `bundle.json` is
readable. A bundle that was changed is refused; so is another robot than the one that it was exported for.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.security import load_own_keys
from robot_rl.robot.deploy.cameras import check_cameras
from robot_rl.robot.deploy.deployment import check_robot_fits
from robot_rl.robot.deploy.judge import load_classifier
from robot_rl.saved_policies.bundle import write_bundle
from robot_rl.saved_policies.loading import load_networks, policy_directory

_TIMEOUT = 5.0
"""s to wait for an answer of the robot."""


@dataclass
class Config:
    policy: str = "???"
    """Directory of a run or of a saved policy."""
    out: str = "???"
    """Directory of the bundle, which must not exist."""
    robot: str | None = None
    """Address of the server of the robot that the bundle is for: its spec with calibration and latencies are
    recorded, and every other robot is refused. null for any robot that fits the policy."""
    success: str | None = None
    """Run of `method=classifier` to include; a deployment of the bundle judges success with it."""
    licence: str | None = None
    """Licence of the weights, to be stated in the manifest."""
    keys: str | None = None
    """File of this client's keys, from `robot-rl robot keys`; required for a robot on a network."""
    insecure: bool = False
    """Use a network without keys."""


def run(config: Config) -> None:
    with ExitStack() as ended, as_user_errors():
        # Loaded first, so that damaged files are not exported.
        _, meta = load_networks(config.policy)
        classifier = load_classifier(config.success) if config.success else None
        robot = None
        if config.robot:
            keys = load_own_keys(config.keys)
            try:
                client = ended.enter_context(
                    RobotClient(config.robot, "export", keys=keys, insecure=config.insecure, timeout=_TIMEOUT)
                )
            except RobotError as error:
                raise UserError(f"{config.robot}: {error}") from error
            check_robot_fits(client.spec, client.lease_ms, meta["environment"])
            if classifier:
                check_cameras(client.spec, classifier[1], "the classifier")
            robot = (client.spec, client.latency)
        manifest = write_bundle(
            policy_directory(Path(config.policy)),
            Path(config.out),
            classifier=policy_directory(Path(config.success)) if config.success else None,
            robot=robot,
            licence=config.licence,
        )
    bound = f"for {manifest.robot.name}" if manifest.robot else "for any robot that fits"
    print(
        f"{config.out}: {manifest.kind} of {manifest.task}, {bound}, fingerprint {manifest.fingerprint[:16]}"
    )
