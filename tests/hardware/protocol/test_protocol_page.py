"""docs/protocol.md has every message, field, mode and code, and no other."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from robot_rl.hardware.protocol import messages as m
from robot_rl.hardware.protocol.arrays import Frame
from robot_rl.hardware.protocol.endpoints import CHANNELS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
MESSAGES = {
    kind.__struct_config__.tag: kind
    for union in (m.ClientMessage, m.ServerMessage)
    for kind in get_args(union)
}
ENVELOPE = set(m.Message.__struct_fields__)


def section(title: str) -> str:
    """From its heading to the next one."""
    found = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{len(found)} sections {title!r}"
    return found[0]


def rows(text: str) -> list[list[str]]:
    """Cells of the table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(text: str) -> list[str]:
    """First column of the table."""
    return [row[0].strip("`") for row in rows(text)]


def test_every_message_has_a_section_and_every_such_section_a_message() -> None:
    titles = re.findall(r"^### `(\w+)`$", PAGE, flags=re.MULTILINE)
    assert len(titles) == len(set(titles))
    assert set(titles) == set(MESSAGES)


@pytest.mark.parametrize("tag", MESSAGES)
def test_every_field_of_a_message_is_in_its_table_with_its_default(tag: str) -> None:
    kind = MESSAGES[tag]
    own = [name for name in kind.__struct_fields__ if name not in ENVELOPE]
    table = rows(section(f"`{tag}`"))
    assert [row[0].strip("`") for row in table] == own
    assert all(len(row) == 3 and row[1] for row in table)
    optional = {field.name for field in msgspec.structs.fields(kind) if not field.required}
    for name, type_, _ in table:
        said = bool(re.search(r", (0|100|false|empty)$|or nil$", type_))
        assert said == (name.strip("`") in optional), f"{tag}.{name} is {type_!r}"


def test_the_envelope_and_the_images_header_are_there() -> None:
    assert names(section("Envelope")) == list(m.Message.__struct_fields__)
    assert names(section("Images")) == list(Frame.__struct_fields__)


def test_parts_of_a_state_are_explained() -> None:
    text = section("`state`")
    for part in (m.Gripped, m.Loop):
        for name in part.__struct_fields__:
            assert f"`{name}`" in text


def test_modes_codes_roles_and_channels_are_all_there() -> None:
    assert names(section("Modes")) == [mode.value for mode in m.Mode]
    assert names(section("Codes")) == [code.value for code in m.Code]
    assert names(section("Keys")) == list(get_args(m.Role))
    assert names(section("Sockets")) == list(CHANNELS)


def test_the_page_is_of_this_version() -> None:
    assert f"**Protocol {m.PROTOCOL[0]}.{m.PROTOCOL[1]}.**" in PAGE
