"""The page cannot be reached over a network without a certificate, nor used without the token."""

import socket
import ssl
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from robot_rl.hardware.teleop.web.access import Access, fingerprint, self_signed_certificate
from robot_rl.hardware.teleop.web.access import make_access as access_of
from robot_rl.hardware.teleop.web.settings import SELF_SIGNED, WebSettings


def make_access(*settings: Any) -> Access:
    return access_of(WebSettings(*settings))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "robot-rl" / "web"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "robot.local", "127.0.0.1.example.org"])
def test_an_address_that_others_can_reach_needs_a_certificate(host: str) -> None:
    with pytest.raises(ValueError, match=f"{host} can be reached by other machines"):
        make_access(host, 8443)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.9.1"])
def test_loopback_needs_none(host: str) -> None:
    access = make_access(host, 8443)
    assert access.tls is None
    shown = f"[{host}]" if ":" in host else host
    assert access.url(99) == f"http://{shown}:99/#{access.token}"


def test_the_token_is_another_one_each_time_and_nothing_else_is_admitted() -> None:
    access, other = make_access("127.0.0.1", 0), make_access("127.0.0.1", 0)
    assert len(access.token) >= 20
    assert access.admits(access.token)
    for wrong in ("", other.token, access.token[:-1], access.token + "x", "ü"):
        assert not access.admits(wrong)
    assert access.token not in repr(access)


def test_a_certificate_is_made_once_and_for_this_machine_alone(home: Path) -> None:
    access = make_access("192.168.1.2", 8443, SELF_SIGNED)
    assert access.tls is not None
    assert access.url(8443).startswith("https://192.168.1.2:8443/#")
    again = make_access("192.168.1.2", 8443, SELF_SIGNED)
    assert access.fingerprint == again.fingerprint == fingerprint(home / "certificate.pem")
    assert stat.S_IMODE((home / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    moved = make_access("192.168.1.3", 8443, SELF_SIGNED)
    assert moved.fingerprint != access.fingerprint


def test_a_certificate_that_is_damaged_or_runs_out_is_made_anew(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, _ = self_signed_certificate(["localhost"])
    first = fingerprint(certificate)
    monkeypatch.setattr("robot_rl.hardware.teleop.web.access._RENEW_BEFORE", timedelta(days=10000))
    self_signed_certificate(["localhost"])
    second = fingerprint(certificate)
    assert second != first
    monkeypatch.undo()
    monkeypatch.setenv("XDG_DATA_HOME", str(home.parent.parent))
    certificate.write_text("damaged")
    self_signed_certificate(["localhost"])
    assert fingerprint(certificate) not in (first, second)


def test_files_that_are_no_certificate_are_named(home: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(ValueError, match="empty"):
        make_access("0.0.0.0", 8443, str(empty))
    with pytest.raises(ValueError, match="missing"):
        make_access("0.0.0.0", 8443, "missing.pem")
    with pytest.raises(ValueError, match="needs a certificate"):
        make_access("127.0.0.1", 8443, None, "key.pem")
    certificate, key = self_signed_certificate(["localhost"])
    access = make_access("0.0.0.0", 8443, str(certificate), str(key))
    assert isinstance(access.tls, ssl.SSLContext)
    assert access.tls.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:8443", "127.0.0.1:99", "localhost."]
)
def test_a_page_on_loopback_is_served_under_its_names(host: str) -> None:
    assert make_access("127.0.0.1", 8443).serves(host, "127.0.0.1")


@pytest.mark.parametrize(
    "host",
    ["", ":8443", "evil.example", "localhost.evil.example", "evil.example:8443", "127.0.0.1@evil.example",
     "192.168.1.9", "[::1", "localhost:8443,evil.example", "robot.example.org"],
)  # fmt: skip
def test_a_page_on_loopback_is_served_under_no_other_name(host: str) -> None:
    assert not make_access("127.0.0.1", 8443).serves(host, "127.0.0.1")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_a_page_on_all_addresses_is_served_under_the_machines_own_names_and_addresses(bound: str) -> None:
    access = access_of(WebSettings(bound, 8443, SELF_SIGNED, names=["robot.example.org", "10.1.2.3"]))
    name = socket.gethostname()
    for host in (name, f"{name}.local:8443", "localhost", "Robot.Example.org:8443", "10.1.2.3"):
        assert access.serves(host, "192.168.1.2"), host
    # The address at which a request arrived is this machine's, whichever of several it is.
    assert access.serves("192.168.1.2:8443", "192.168.1.2")
    assert access.serves("192.168.1.2:8443", "::ffff:192.168.1.2")
    assert access.serves("[fe80::1]:8443", "fe80::1")
    for host in ("192.168.1.3", "evil.example", "0.0.0.0.evil.example"):
        assert not access.serves(host, "192.168.1.2"), host


@pytest.mark.usefixtures("home")
def test_a_certificate_made_here_is_for_the_further_names_too() -> None:
    plain = access_of(WebSettings("192.168.1.2", 8443, SELF_SIGNED))
    named = access_of(WebSettings("192.168.1.2", 8443, SELF_SIGNED, names=["robot.example.org"]))
    assert named.fingerprint != plain.fingerprint


@pytest.mark.parametrize("name", ["", "*", "https://robot", "robot:8443", "a b", "-robot"])
def test_a_further_name_is_a_name_alone(name: str) -> None:
    with pytest.raises(ValueError, match=r"device\.names=.*without https:// and port"):
        WebSettings(names=[name])


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_is_one(port: int) -> None:
    with pytest.raises(ValueError, match=f"device.port={port}"):
        make_access("127.0.0.1", port)
