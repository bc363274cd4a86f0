"""One address gives seven endpoints; directories that others may enter are refused."""

import os
import stat
from pathlib import Path

import pytest

from robot_rl.hardware.protocol.endpoints import CHANNELS, Address, Claim, make_private, parse


def test_a_tcp_address_is_seven_consecutive_ports() -> None:
    address = parse("tcp://192.168.1.2:5550")
    assert [address.endpoint(channel) for channel in CHANNELS] == [
        f"tcp://192.168.1.2:{port}" for port in range(5550, 5557)
    ]
    assert len(set(CHANNELS)) == 7


def test_an_ipc_address_is_a_socket_file_per_channel() -> None:
    address = parse("ipc:///run/robot")
    assert address.endpoint("ctrl") == "ipc:///run/robot/ctrl"
    assert len({address.endpoint(channel) for channel in CHANNELS}) == 7


@pytest.mark.parametrize(
    "text", ["ipc:///run/robot", "tcp://10.0.0.1:1", "tcp://[fe80::1]:65529", "tcp://*:5550"]
)
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(parse(text)) == text
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("ipc:///run/robot", True),
        ("tcp://127.0.0.1:5550", True),
        ("tcp://127.8.9.10:5550", True),
        ("tcp://localhost:5550", True),
        ("tcp://[::1]:5550", True),
        ("tcp://*:5550", False),
        ("tcp://0.0.0.0:5550", False),
        ("tcp://[::]:5550", False),
        ("tcp://192.168.1.2:5550", False),
        ("tcp://robot.local:5550", False),
        ("tcp://lo:5550", False),
        ("tcp://localhost.evil.example:5550", False),
        ("tcp://127.0.0.1.evil.example:5550", False),
        ("tcp://2130706433:5550", False),
    ],
)
def test_only_what_no_other_machine_can_reach_is_loopback(text: str, loopback: bool) -> None:
    assert parse(text).is_loopback == loopback


def test_localhost_is_not_left_to_a_resolver() -> None:
    assert parse("tcp://localhost:5550").endpoint("ctrl") == "tcp://127.0.0.1:5550"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "robot",
        "udp://127.0.0.1:5550",
        "inproc://robot",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:http",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65530",
        "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:5550/x",
        "tcp://127.0.0.1:5550\n",
        "tcp://eth0;192.168.1.1:5550 ",
        "tcp://:5550",
        "tcp://::1:5550",
        "ipc://relative",
        "ipc:///",
        "ipc://",
        "ipc:///" + "x" * 102,
    ],
)
def test_what_is_no_address_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"choose|write") as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_the_longest_path_that_fits_is_taken() -> None:
    longest = max(len(channel) for channel in CHANNELS)
    fits = "ipc:///" + "x" * (107 - 1 - 1 - longest)
    parse(fits)
    with pytest.raises(ValueError, match="too long for a socket by 1 byte"):
        parse(fits + "x")


def test_a_directory_is_made_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make_private(tmp_path / "r")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700
    make_private(tmp_path / "r")


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o750, 0o755, 0o777, 0o1777])
def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "r"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ValueError, match=f"chmod 700 {directory}"):
        make_private(directory)
    directory.chmod(0o700)
    make_private(directory)


def test_a_link_and_a_file_are_no_directories(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "file"):
        with pytest.raises(ValueError, match="not a directory"):
            make_private(tmp_path / name)
    with pytest.raises(ValueError, match="does not exist; make it"):
        make_private(tmp_path / "a" / "b")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir(mode=0o700)
    os.chown(tmp_path / "r", 12345, 12345)
    with pytest.raises(ValueError, match="belongs to another user"):
        make_private(tmp_path / "r")


def test_an_address_is_served_by_one(ipc: Address) -> None:
    first = Claim(ipc)
    with pytest.raises(ValueError, match="another server is at"):
        Claim(ipc)
    first.close()
    first.close()
    Claim(ipc).close()
