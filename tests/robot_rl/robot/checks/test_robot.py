"""`doctor` on a running robot names each problem and its fix. Each fault is a real one."""

import ast
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robot_rl.cli import main as cli
from robot_rl.hardware.clock import MS
from robot_rl.hardware.connection import Connection, NoAnswer, ServerChanged
from robot_rl.hardware.protocol.endpoint_gate import FileGate
from robot_rl.hardware.protocol.endpoints import Address, parse
from robot_rl.hardware.protocol.messages import Mode, SampleNow, State
from robot_rl.hardware.protocol.security import ClientKeys, load_client_keys, make_client_keys
from robot_rl.robot.checks import server as server_module
from robot_rl.robot.checks.connection import ServerTarget, connect
from robot_rl.robot.checks.installation import Check
from robot_rl.robot.checks.observation import Probe, ServerObservation, observe
from robot_rl.robot.checks.robot_checks import check_served
from robot_rl.robot.checks.server import check_camera, check_spec_hash, check_states, check_wall_clock
from tests.hardware.fault_proxy import FaultProxy, Faults
from tests.hardware.ports import free_address
from tests.hardware.processes import PATIENCE, ROOT, Process, eventually

SCRIPT = str(ROOT / "tests" / "hardware" / "ailing_server.py")
LOOK = 1.0
"""s"""


@contextmanager
def serving(folder: Path, **told: Any) -> Iterator[tuple[Process, str]]:
    address = told.pop("address", f"ipc://{folder / 'r'}")
    process = Process([SCRIPT, json.dumps({"address": address, **told})], "ready")
    try:
        yield process, address
    finally:
        process.kill()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers does so in time, however busy this machine is."""
    monkeypatch.setattr("robot_rl.robot.checks.connection.TIMEOUT", PATIENCE)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what never answers, however long the doctor waits."""
    for name in ("TIMEOUT", "_HANDSHAKE"):
        monkeypatch.setattr(f"robot_rl.robot.checks.connection.{name}", 0.5)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Process, str]]:
    """To be maltreated."""
    with serving(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that is left as it is, with a camera."""
    with serving(tmp_path_factory.mktemp("well"), cameras={"wrist": {}}) as (_, address):
        yield address


def examined(address: str | Address, **target: Any) -> dict[str, Check]:
    """All checks of a server, by name."""
    address = parse(address) if isinstance(address, str) else address
    return {check.name: check for check in check_served(ServerTarget(address, **target), LOOK)}


def the_fault(checks: dict[str, Check], name: str) -> Check:
    """The fault is found, and a fix is suggested."""
    check = checks[name]
    assert not check.ok, check
    assert check.known
    assert check.fix
    assert "\n" not in check.detail + check.fix
    return check


# ---- nobody answers -------------------------------------------------------------------------------------


def test_where_nobody_has_ever_served_nothing_is_made(tmp_path: Path) -> None:
    fault = the_fault(examined(f"ipc://{tmp_path / 'r'}"), "server")
    assert "no server" in fault.detail
    assert "robot-rl robot driver=" in fault.fix
    assert not (tmp_path / "r").exists()


@pytest.mark.usefixtures("impatient")
def test_a_killed_server_is_told_from_one_that_is_suspended(server: tuple[Process, str]) -> None:
    process, address = server
    process.send(signal.SIGSTOP)
    assert "suspended" in the_fault(examined(address), "server").detail
    process.kill()
    assert "was killed" in the_fault(examined(address), "server").detail


@pytest.mark.usefixtures("impatient")
def test_a_server_that_takes_no_new_connections_is_named(server: tuple[Process, str]) -> None:
    process, address = server
    folder = parse(address).directory
    assert folder is not None
    FileGate(folder / "ctrl").close()
    assert "connection limit" in the_fault(examined(address), "server").detail
    process.kill()
    assert "its server was killed" in the_fault(examined(address), "server").detail


@pytest.mark.usefixtures("impatient")
def test_a_server_whose_control_thread_hangs_is_named(server: tuple[Process, str]) -> None:
    process, address = server
    process.tell("slow 600000")

    def hangs() -> Check | None:
        """A busy machine may need more than one look."""
        checks = examined(address)
        return the_fault(checks, "server") if "control thread hangs" in checks["server"].detail else None

    assert "the arm's own stop" in eventually(hangs, "it is told so, and hangs").fix


@pytest.mark.usefixtures("impatient")
def test_nobody_at_a_port_no_such_machine_and_another_program(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert "another program" in the_fault(examined(f"tcp://127.0.0.1:{port}"), "server").detail
    gone = the_fault(examined(f"tcp://127.0.0.1:{port}"), "server")
    assert "no server" in gone.detail
    unknown = ServerTarget(Address(host="no-such-machine.invalid", port=4000), insecure=True)
    checks, line = connect(unknown)
    assert line is None
    assert "no machine is named" in checks[0].detail


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server with keys, and their directory."""
    keys = tmp_path / "keys"
    make_client_keys(keys, "eye", "observer")
    with serving(tmp_path, address=free_address(), keys=str(keys)) as (_, address):
        yield address, keys


def test_keys_that_do_not_open_are_told_apart(
    keyed: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, keys = keyed
    eye = load_client_keys(keys / "clients" / "eye.json")
    stranger = load_client_keys(make_client_keys(tmp_path / "others", "eye", "operator"))
    late = load_client_keys(make_client_keys(keys, "late", "policy"))

    def is_told(own: ClientKeys | None, says: str) -> Check | None:
        check = examined(address, keys=own)["server"]
        return check if says in check.detail else None

    with monkeypatch.context() as impatient:
        # Nobody gets an answer here; a busy machine may need more than one try to see why.
        for name in ("TIMEOUT", "_HANDSHAKE"):
            impatient.setattr(f"robot_rl.robot.checks.connection.{name}", 1.0)
        eventually(lambda: is_told(None, "requires keys"), "that keys are missing")
        eventually(lambda: is_told(stranger, "another server"), "whose keys they are")
        unknown = eventually(lambda: is_told(late, "does not know this client's key"), "that they are new")
    assert not unknown.ok
    assert "restart the server" in unknown.fix
    # A key that opens, but not as an operator: all else is looked at all the same.
    checks = examined(address, keys=eye, role="operator")
    role = the_fault(checks, "role")
    assert role.detail == "eye may be observer, not operator"
    assert "role=operator" in role.fix
    assert checks["arm"].ok
    assert examined(address, keys=eye)["role"].detail == "observer"


@pytest.mark.usefixtures("impatient")
def test_keys_for_a_server_without_any(well: str, tmp_path: Path) -> None:
    keys = load_client_keys(make_client_keys(tmp_path / "keys", "me", "observer"))
    eventually(lambda: examined(well, keys=keys)["server"].fix == "omit keys", "that it has none")


def test_another_version_of_the_protocol_is_named(well: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robot_rl.hardware.connection.PROTOCOL", (2, 0))
    fault = the_fault(examined(well), "protocol")
    assert "protocol 2.0 is not 1." in fault.detail
    assert "same version" in fault.fix


# ---- a server that answers ------------------------------------------------------------------------------


def test_what_is_well_is_said_to_be_well(well: str) -> None:
    names = ("encryption", "server", "protocol", "role", "spec", "clock", "time of day", "arm", "gripper")

    def all_well() -> dict[str, Check] | None:
        checks = examined(well, role="operator")
        return checks if all(checks[name].ok for name in (*names, "camera wrist")) else None

    checks = eventually(all_well, "images come in time, and all is well")
    assert all(checks[name].known for name in names)
    assert checks["role"].detail == "operator"
    assert checks["arm"].detail == "idle"
    assert checks["clock"].detail == "the server is on this machine: one clock"
    # How fast this machine is just now is not asked here.
    assert {"round trip", "states", "loop", "camera wrist", "real-time", "kernel"} <= checks.keys()


def test_a_latched_fault_is_shown_with_the_way_to_acknowledge_it(server: tuple[Process, str]) -> None:
    process, address = server
    process.tell("fail joint 3 felt a wall")
    fault = eventually(lambda: (c := examined(address)["arm"]) and not c.ok and c, "the fault is shown")
    assert "driver: joint 3 felt a wall" in fault.detail
    ast.parse(fault.fix.partition("then ")[2])
    assert "robot.acknowledge(" in fault.fix


def test_ticks_that_are_late_and_states_that_are_too_few(server: tuple[Process, str]) -> None:
    process, address = server
    process.tell("slow 30")

    def late() -> dict[str, Check] | None:
        checks = examined(address)
        return checks if not checks["loop"].ok and "too slow" in checks["states"].fix else None

    checks = eventually(
        late, "half of the ticks since the start are late, and no pause is as long as a stall"
    )
    assert "overruns" in the_fault(checks, "loop").detail
    the_fault(checks, "states")


def test_a_server_that_falls_silent_meanwhile(server: tuple[Process, str], monkeypatch: Any) -> None:
    process, address = server
    handshake = Connection.handshake

    def then_stop(self: Connection, *arguments: Any) -> None:
        handshake(self, *arguments)
        time.sleep(0.3)
        process.send(signal.SIGSTOP)
        self._timeout = 0.5

    monkeypatch.setattr(Connection, "handshake", then_stop)
    checks = examined(address)
    assert "without an answer" in checks["round trip"].detail or "none of" in checks["round trip"].detail
    the_fault(checks, "round trip")
    the_fault(checks, "states")


def test_a_gripper_that_is_not_read_any_more(
    server: tuple[Process, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, address = server
    eventually(lambda: examined(address)["gripper"].ok, "it is read")
    monkeypatch.setattr(server_module, "GRIPPER", 400.0)
    process.tell("hang")
    fault = eventually(lambda: (c := examined(address)["gripper"]) and not c.ok and c, "its reading is old")
    assert "0.50 open" in fault.detail


def test_a_slow_network_is_measured_against_the_lease(tmp_path: Path, monkeypatch: Any) -> None:
    # As from another machine: here there would be one clock.
    monkeypatch.setattr("robot_rl.hardware.connection.boot_id", lambda: "another machine")
    monkeypatch.setattr("robot_rl.robot.checks.server.boot_id", lambda: "another machine")
    monkeypatch.setattr("robot_rl.robot.checks.robot_checks.boot_id", lambda: "another machine")
    front = parse(f"ipc://{tmp_path / 'p'}")
    with (
        serving(tmp_path, lease_ms=100) as (_, address),
        FaultProxy(front, parse(address), Faults(delay_ms=60), 0),
    ):
        checks = examined(front)
    assert "the lease lasts 100 ms" in the_fault(checks, "round trip").detail
    assert "ms ahead of this machine's" in the_fault(checks, "clock").detail
    there = checks["real-time"]
    assert not there.known
    assert "robot-rl doctor robot=" in there.detail


def test_states_that_are_lost_on_the_way_are_counted(well: str, tmp_path: Path) -> None:
    target = ServerTarget(parse(f"ipc://{tmp_path / 'p'}"))
    with FaultProxy(target.address, parse(well), Faults(), 0) as proxy:
        checks, line = connect(target)
        assert line is not None
        assert all(check.ok for check in checks)
        # For answers that are lost.
        line._timeout = 0.3
        proxy.faults = Faults(drop=0.3)

        def found() -> ServerObservation | None:
            """A busy machine may need more than one look."""
            seen = observe(target, line, LOOK)
            fault = check_states(line.welcome.spec, seen)
            return seen if not fault.ok and " lost of " in fault.detail else None

        seen = eventually(found, "that states are lost")
        line.close()
    assert seen.states[-1][1].seq - seen.states[0][1].seq + 1 > len(seen.states)


def test_clocks_of_the_wall_that_disagree_or_are_set(well: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns
    monkeypatch.setattr("robot_rl.robot.checks.observation.time.time_ns", lambda: now() - 5000 * MS)

    def found() -> Check | None:
        """Seen from a busy machine, the time may be uncertain by much, or the clock as if it were set."""
        fault = the_fault(examined(well), "time of day")
        return fault if re.search(r"\+(50|49)\d\d\.", fault.detail) else None

    assert "set-ntp" in eventually(found, "the difference of five seconds").fix
    stepped = [Probe(MS, 0, number // 5 * 80 * MS) for number in range(10)]
    assert "was set by 80 ms during the check" in check_wall_clock(stepped).detail


def test_a_description_that_both_sides_hash_differently(well: str) -> None:
    _, line = connect(ServerTarget(parse(well)))
    assert line is not None
    assert check_spec_hash(line.welcome).ok
    assert not check_spec_hash(msgspec.structs.replace(line.welcome, spec_sha256="0" * 64)).ok
    line.close()


def test_a_server_that_is_started_anew_meanwhile(
    server: tuple[Process, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, address = server
    monkeypatch.setattr(
        "robot_rl.robot.checks.robot_checks.observe", lambda target, line, _: _after(process, line)
    )

    def _after(process: Process, line: Connection) -> ServerObservation:
        process.kill()
        with serving(tmp_path, address=address):
            eventually(lambda: _notices(line), "the other server answers")
            line.events()
        raise AssertionError("the other server was taken for the first")

    assert "connect again" in the_fault(examined(address), "server").detail


def _notices(line: Connection) -> bool:
    try:
        line.events()
    except NoAnswer:
        return False
    except ServerChanged:
        return True
    raise AssertionError("nothing has changed")


# ---- cameras --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cameras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], dict[str, Check]]]:
    told: dict[str, Any] = {
        "still": {"freeze_at": 5},
        "mute": {"hang_at": 5},
        "holed": {"lose_every": 3},
        "ghost": None,
    }
    with serving(tmp_path_factory.mktemp("cameras"), cameras=told) as (_, address):
        yield lambda: examined(address)


@pytest.mark.parametrize(
    ("camera", "says"),
    [
        ("still", "it was frozen"),
        ("mute", "no new image for"),
        ("holed", " lost, "),
        ("ghost", "0 images in"),
    ],
)
def test_what_is_wrong_with_a_camera(cameras: Callable[[], dict[str, Check]], camera: str, says: str) -> None:
    def found() -> Check | None:
        check = cameras()[f"camera {camera}"]
        return check if not check.ok and says in check.detail else None

    fault = eventually(found, says)
    assert fault.fix


def test_a_camera_whose_images_are_old_is_a_fault(well: str) -> None:
    target = ServerTarget(parse(well))
    _, line = connect(target)
    assert line is not None
    seen = eventually(lambda: _with_images(observe(target, line, LOOK)), "images come")
    line.close()
    late = [(received + 2_000 * MS, frame) for received, frame in seen.images["wrist"]]
    later = ServerObservation(seen.began, seen.ended + 2_000 * MS, (), 0, ())
    fault = check_camera(line.welcome.spec.cameras[0], late, (), later)
    assert not fault.ok
    assert "ms old" in fault.detail


def _with_images(seen: ServerObservation) -> ServerObservation | None:
    return seen if len(seen.images["wrist"]) > 10 else None


# ---- as a user meets it ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_the_command_line_and_its_exit_codes(
    server: tuple[Process, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process, address = server
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", f"robot=ipc://{tmp_path / 'nobody'}"])
    assert ended.value.code == 1
    assert "FAULT server         no server at" in capsys.readouterr().out
    assert cli.main(["doctor", "robot=sim_pandaa"]) == 2
    assert "did you mean sim_panda?" in capsys.readouterr().err
    assert cli.main(["doctor", "robot=tcp://192.0.2.1:4000"]) == 2
    assert "there are no keys" in capsys.readouterr().err
    assert cli.main(["doctor", f"robot={address}", "role=boss"]) == 2
    assert "choose observer, policy, operator" in capsys.readouterr().err
    process.send(signal.SIGSTOP)
    with pytest.raises(SystemExit):
        cli.main(["doctor", f"robot={address}"])
    assert "fix:           press the arm's own stop" in capsys.readouterr().out


def test_the_doctor_does_nothing_to_the_robot(well: str) -> None:
    _, line = connect(ServerTarget(parse(well)))
    assert line is not None
    before = line.events()[-1].seq
    examined(well, role="operator")
    told = [event for event in line.events(before) if not event.what.startswith("camera_")]
    state = line.ask(State, SampleNow)
    line.close()
    assert told == []
    assert (state.mode, state.lease_holder) == (Mode.IDLE, "")
