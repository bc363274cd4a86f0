"""Which configurations go on in the directory of a run."""

from pathlib import Path

import pytest

from robot_rl.errors import UserError
from robot_rl.runs import check_run, open_run

BEFORE = {"method": {"name": "dsrl", "bound": 1.5}}


@pytest.mark.parametrize(
    ("later", "changed"),
    [
        ({"bound": 1.5}, ""),
        ({"bound": 1.5, "repeated_noise": False}, ""),
        ({"bound": 1.5, "repeated_noise": True}, "method.repeated_noise was None, now True"),
        ({"bound": 1.5, "steps_more": 0}, "method.steps_more was None, now 0"),
        ({"bound": 2.0}, "method.bound was 1.5, now 2.0"),
    ],
)
def test_a_run_of_an_earlier_version_goes_on_without_the_options_that_it_lacked(
    tmp_path: Path, later: dict[str, object], changed: str
) -> None:
    open_run(tmp_path, BEFORE)
    now = {"method": {"name": "dsrl", **later}}
    if not changed:
        check_run(tmp_path, now)
        return
    with pytest.raises(UserError, match=changed):
        check_run(tmp_path, now)


def test_a_message_names_what_a_run_is_of_and_a_few_other_differences(tmp_path: Path) -> None:
    options = {f"option{number}": number for number in range(20)}
    open_run(tmp_path, {"method": {"name": "bc", **options}})
    with pytest.raises(UserError) as caught:
        check_run(tmp_path, {"method": {"name": "residual"}})
    assert "configuration (method.name was 'bc', now 'residual'; method.option0 was 0" in str(caught.value)
    assert str(caught.value).count(" was ") == 8
    assert "; and 13 more); choose another name=" in str(caught.value)
