"""The faster contact check against robosuite's."""

from robosuite.utils import sim_utils

from robot_rl.envs.compiled import compile_control, queries
from tests.envs.test_compiled import actions, make


def test_contacts_are_robosuites() -> None:
    """The replaced function gives robosuite's results, for registered simulations and for others."""
    stock, ours = make("Stack"), make("Stack")
    compile_control(ours)
    assert sim_utils.check_contact is queries.check_contact
    cases = (
        (ours.cubeA, None),
        (ours.cubeA, ours.cubeB),
        ("table_collision", ours.cubeB.contact_geoms),
        (ours.robots[0].gripper["right"], ours.cubeA),
        (["no_such_geom"], None),
    )
    down = 0.3 * actions(ours, 60)
    down[:, 2] = -1.0
    answers = set()
    for command in down:
        stock.step(command)
        ours.step(command)
        for first, second in cases:
            expected = queries._original(stock.sim, first, second)
            assert sim_utils.check_contact(ours.sim, first, second) == expected
            assert sim_utils.check_contact(stock.sim, first, second) == expected
            answers.add(expected)
    assert answers == {True, False}
