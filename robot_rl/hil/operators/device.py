"""The device at which a person sits."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from robot_rl.hardware.teleop.devices import DEVICES


def device_settings(operator: str, given: Mapping[str, Any]) -> Any:
    """The settings of a device by its name, and what was given of them.

    Raises:
        ValueError: a setting that it does not have, has to be given, or cannot be so.
    """
    schema = DEVICES[operator]
    known = [field.name for field in fields(schema)]
    for key in given:
        if key not in known:
            raise ValueError(f"hil.device.{key}: {operator} has {', '.join(known)}")
    for field in fields(schema):
        if field.default == "???" and field.name not in given:
            raise ValueError(f"hil.operator={operator} needs hil.device.{field.name}=…")
    try:
        return msgspec.convert(dict(given), schema)
    except msgspec.ValidationError as error:
        raise ValueError(f"the settings hil.device.… of {operator}: {error}") from error
