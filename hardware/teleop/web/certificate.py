"""Self-signed certificate of this machine; users verify its fingerprint in the browser."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from robot_rl.hardware.durable import sync
from robot_rl.hardware.protocol.endpoints import make_private

_VALID: Final = datetime.timedelta(days=820)
"""Browsers refuse certificates of more than 825 days."""
_RENEW_BEFORE: Final = datetime.timedelta(days=7)


def self_signed_certificate(names: Sequence[str]) -> tuple[Path, Path]:
    """Return the files of certificate and key for these names; made at the first call and before expiry.

    Raises:
        ValueError: if other users can read their folder.
    """
    folder = _folder()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if not (key.exists() and certificate.exists() and _is_valid_for(certificate, names)):
        _make(certificate, key, names)
    return certificate, key


def fingerprint(path: Path) -> str:
    """SHA-256 of a PEM file's first certificate, as colon-separated hex pairs.

    Raises:
        ValueError: if the file holds no certificate.
    """
    digest = x509.load_pem_x509_certificate(path.read_bytes()).fingerprint(hashes.SHA256())
    return digest.hex(":").upper()


def _folder() -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    folder = data / "robot-rl" / "web"
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_private(folder)
    return folder


def _is_valid_for(path: Path, names: Sequence[str]) -> bool:
    """Whether a certificate covers all of these names and does not expire soon."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return left > _RENEW_BEFORE and set(map(_general_name, names)) <= set(named)


def _make(certificate: Path, key: Path, names: Sequence[str]) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "robot-rl")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([*map(_general_name, names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _write(key, secret.private_bytes(pem, pkcs8, plain))
    _write(certificate, signed.public_bytes(pem))


def _general_name(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _write(path: Path, text: bytes) -> None:
    """Write a file that has mode 0600 from the start."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(text)
    sync(path)
    sync(path.parent)
