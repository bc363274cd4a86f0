"""Settings of the device of `hil.operator`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from robot_rl.hardware.teleop.devices import DEVICES


def device_settings(operator: str, given: Mapping[str, Any]) -> Any:
    """Make the settings of a device.

    Args:
        operator: name of the device.
        given: settings that the user gave.

    Raises:
        ValueError: if a setting is unknown, missing or of another type.
    """
    schema = DEVICES[operator]
    known = [field.name for field in fields(schema)]
    for key in given:
        if key not in known:
            raise ValueError(f"hil.device.{key}: the settings of {operator} are {', '.join(known)}")
    for field in fields(schema):
        if field.default == "???" and field.name not in given:
            raise ValueError(f"hil.operator={operator} needs hil.device.{field.name}=…")
    try:
        return msgspec.convert(dict(given), schema)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid hil.device.… for {operator}: {error}") from error
