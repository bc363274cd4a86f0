"""The copies of mjModel that the compiled loop steps."""

import mujoco
import numpy as np
import pytest
from mujoco.introspect import structs

from robot_rl.envs.compiled import NotCompilable, compile_control
from robot_rl.envs.compiled import model as stepped
from tests.envs.test_compiled import actions, make, pair


def test_sensors_are_robosuites_at_every_observation() -> None:
    stock, ours = pair()
    wrist = stock.robots[0].recent_ee_forcetorques["right"], ours.robots[0].recent_ee_forcetorques["right"]
    for command in actions(ours, 10):
        stock.step(command)
        ours.step(command)
        assert np.array_equal(stock.sim.data.sensordata, ours.sim.data.sensordata)
        assert np.array_equal(stock.robots[0].ee_force["right"], ours.robots[0].ee_force["right"])
        assert np.array_equal(wrist[0].current, wrist[1].current)
    assert np.abs(ours.sim.data.sensordata).max() > 0


def test_options_may_change_between_steps() -> None:
    stock, ours = pair()
    for gravity, friction in ((-9.81, 1.0), (-3.0, 0.2)):
        for env in (stock, ours):
            env.sim.model._model.opt.gravity[2] = gravity
            env.sim.model._model.geom_friction[:, 0] = friction
        for command in actions(ours, 5):
            stock.step(command)
            ours.step(command)
            assert np.array_equal(stock.sim.data.qpos, ours.sim.data.qpos)


def test_the_environments_own_model_is_left_as_it_was() -> None:
    env = make()
    model = env.sim.model._model
    before = model.nbvh, model.opt.disableflags, model.opt.timestep
    compile_control(env)
    env.step(np.zeros(7))
    assert (model.nbvh, model.opt.disableflags, model.opt.timestep) == before
    assert before[0] > 0


@pytest.mark.skipif(not hasattr(mujoco.MjModel, "nhistory"), reason="MuJoCo has sensor histories since 3.5")
def test_a_model_with_a_sensor_history_computes_its_sensors_always() -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><freejoint/><geom size='.1'/><site name='s'/></body></worldbody>"
        "<sensor><accelerometer site='s' nsample='3'/></sensor></mujoco>"
    )
    assert model.nhistory
    assert not stepped.SteppedModel(model)._sensorless.opt.disableflags


def test_another_layout_of_the_struct_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make()
    declaration = structs.STRUCTS["mjModel"]
    without_first = type(declaration)(
        name=declaration.name, declname=declaration.declname, fields=declaration.fields[1:]
    )
    monkeypatch.setitem(structs.STRUCTS, "mjModel", without_first)
    stepped._mjmodel.cache_clear()
    try:
        with pytest.raises(NotCompilable, match="has another layout of mjModel"):
            compile_control(env)
    finally:
        stepped._mjmodel.cache_clear()
    assert not {"step"} & vars(env).keys()
    env.step(np.zeros(7))
