"""Configurations: typed results and error messages."""

from dataclasses import fields, is_dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

from robot_rl.assets import asset_path
from robot_rl.cli.command import Command, meanings, type_name
from robot_rl.cli.compose import compose, load_group
from robot_rl.cli.help import print_help
from robot_rl.cli.main import command_names, load_command
from robot_rl.cli.overrides import FORMER_NAMES
from robot_rl.envs.task import TaskConfig
from robot_rl.errors import UserError
from robot_rl.methods.registry import METHODS
from tests.robot_rl.cli.sample_command import Config, Device, Diffusion, Residual, Run, sample_command

NEEDED = ["name=x", "base=diffusion"]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return sample_command(tmp_path)


def test_groups_come_out_as_their_dataclasses(command: Command) -> None:
    config = compose(command, [*NEEDED, "task=can", "method=residual", "device=cuda", "limit=3"])
    assert isinstance(config, Config)
    assert config.task == TaskConfig(name="can", env="PickPlaceCan", horizon=300)
    assert config.method == Residual(horizon=300)
    assert config.base == Diffusion()
    assert (config.seed, config.device, config.limit, config.eval.episodes) == (7, Device.cuda, 3.0, 10)


def test_path_in_place_of_a_choice(command: Command, tmp_path: Path) -> None:
    config = compose(command, ["name=x", "base=runs/lift bc, 2/"])
    assert config.base == Run("runs/lift bc, 2/")
    config = compose(command, ["name=x", f"base={tmp_path}", "base.path=elsewhere"])
    assert config.base == Run("elsewhere")
    with pytest.raises(UserError, match="there is no such method"):
        compose(command, [*NEEDED, "method=runs/x"])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("name=a=b", "a=b"),
        ("name=a~/données", "a~/données"),
        ("name='a,b'", "a,b"),
        ("name=2", "2"),
        ("name=${seed}", "7"),
    ],
)
def test_strings(command: Command, argument: str, value: str) -> None:
    assert compose(command, ["base=diffusion", argument]).name == value


def test_last_of_several_counts(command: Command) -> None:
    assert compose(command, [*NEEDED, "seed=1", "seed=2", "method=residual", "method=bc"]).seed == 2
    assert compose(command, ["name=x", "base=runs/x", "base=diffusion"]).base == Diffusion()


REFUSALS = [
    ("steps=5", "unknown key steps; did you mean method.steps=5?"),
    ("method.step=5", "unknown key method.step; did you mean method.steps=5?"),
    ("episodes=3", "did you mean eval.episodes=3?"),
    ("foo=3", "robot-rl sample --help lists all keys"),
    ("seed.x=3", "did you mean seed=3?"),
    ("hydra.run.dir=x", "unknown key hydra.run.dir"),
    ("task@x=lift", "did you mean task=lift?"),
    ("method.n_step=3", "method.n_step belongs to method=residual, and method is bc"),
    ("method.n_steps=3", "did you mean method.n_step=3?"),
    ("eval=3", "eval is a section; set one of its keys, e.g. eval.episodes=…"),
    ("method=residul", "did you mean method=residual? choose from bc, residual"),
    ("method=other", "there is no such method; choose from bc, residual"),
    ("task=null", "there is no such task; choose from can, lift"),
    ("task=[lift,can]", "only one task at a time"),
    ("seed=abc", "seed=abc: the value must be int (Seed of everything random.)"),
    ("seed=1e5", "write seed=100000"),
    ("seed=null", "the value must be int"),
    ("resume=maybe", "the value must be bool"),
    ("device=gpu", "the value must be cpu|cuda"),
    ("limit=x", "the value must be float or null"),
    ("task.image_size=84,x", "the value must be list[int]"),
    ("name=a,b", "a list is written name=[…]"),
    ("name=(a", "quote it"),
    ("name=${nothing}", "Interpolation key 'nothing' not found"),
    ("--seeds=3", "unknown key seeds; did you mean seed=3?"),
    ("--eval.episode=3", "did you mean eval.episodes=3?"),
    ("--method.n-step=3", "method.n_step belongs to method=residual"),
    ("--seed", "--seed: the value is missing; write seed=…"),
    ("--metho", "write method=…"),
    ("--", "the key is missing"),
    ("-seed", "write seed=… instead of -seed"),
    ("-seed=3", "options have two dashes or none: write seed=3 instead of -seed=3"),
    ("+seed=3", "write seed=3"),
    ("~seed", "keys cannot be removed"),
    ("lift", "lift is not key=value; did you mean task=lift?"),
    ("nonsense", "nonsense is not key=value"),
    ("=3", "the key is missing"),
]


@pytest.mark.parametrize(("argument", "answer"), REFUSALS)
def test_refusal_says_what_to_write(command: Command, argument: str, answer: str) -> None:
    with pytest.raises(UserError) as error:
        compose(command, [*NEEDED, argument])
    assert answer in str(error.value)
    assert "\n" not in str(error.value)


def test_parted_values(command: Command) -> None:
    with pytest.raises(UserError, match=r"write seed=3 instead of -seed$"):
        compose(command, [*NEEDED, "-seed", "3"])
    with pytest.raises(UserError, match=r"did you mean seed=3\?"):
        compose(command, [*NEEDED, "seed", "3"])


def test_dashes_are_another_way_to_write_it(command: Command) -> None:
    config = compose(
        command, ["--name", "a=b", "--base=diffusion", "--task", "can", "seed=2", "--limit", "-3"]
    )
    assert (config.name, config.task.name, config.seed, config.limit) == ("a=b", "can", 2, -3)
    config = compose(command, [*NEEDED, "method=residual", "--method.n-step", "5"])
    assert config.method.n_step == 5


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--resume", "seed=1"], True),
        (["--resume"], True),
        (["--resume", "--seed=1"], True),
        (["--resume", "false"], False),
        (["--resume=false"], False),
    ],
)
def test_a_flag_alone_is_true(command: Command, arguments: list[str], value: bool) -> None:
    assert compose(command, ["resume=false", *NEEDED, *arguments]).resume is value


@pytest.mark.parametrize("text", ["a,b", "[a,b]", "a, b", "['a',b]"])
def test_a_list_may_be_written_without_its_brackets(command: Command, text: str) -> None:
    assert compose(command, [*NEEDED, f"task.cameras={text}"]).task.cameras == ["a", "b"]


def test_the_name_of_a_choice_is_no_option(command: Command) -> None:
    with pytest.raises(UserError, match=r"base\.name is the choice itself: write base=flow"):
        compose(command, [*NEEDED, "base.name=flow"])


def test_the_home_directory_of_every_path_is_found(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells leave it as it is in `--data=~/x`, and some in `data=~/x` too."""
    monkeypatch.setenv("HOME", "/home/carl")
    assert compose(command, ["base=diffusion", "--name=~/x"]).name == "/home/carl/x"
    assert compose(command, ["name=x", "base=~/runs/x"]).base.path == "/home/carl/runs/x"


@pytest.mark.parametrize("text", ["2024_05_01", "1e3", "1.10", "true"])
def test_a_text_is_what_was_written_even_if_it_looks_like_a_number(text: str) -> None:
    """Labels are stored with each episode, and names become folders."""
    command = load_command("record")
    config = compose(command, [f"out={text}", f"labels.day={text}"])
    assert (str(config.out), config.labels) == (text, {"day": text})
    merge = compose(load_command("data merge"), [f"datasets=[a,{text}]", "out=b"])
    assert merge.datasets == ["a", text]
    with pytest.raises(UserError, match="need quotes"):
        compose(command, [f"out={text}", f"labels={{day: {text}}}"])


def test_the_name_of_a_client_is_an_option() -> None:
    """As docs/interventions.md has it for two runs that take turns."""
    given = ["method=residual_chunk", "base=runs/x", "task=lift", "hil=on", "hil.operator=none"]
    turns = ["hil.robot=ipc:///tmp/x", "hil.name=forward", "hil.turns_with=backward", "hil.first=true"]
    config = compose(load_command("train"), [*given, *turns])
    assert (config.hil.name, config.hil.turns_with) == ("forward", "backward")


def test_a_list_of_one_or_none(command: Command) -> None:
    assert compose(command, [*NEEDED, "task.cameras=a"]).task.cameras == ["a"]
    assert compose(command, [*NEEDED, "task.cameras="]).task.cameras == []
    with pytest.raises(UserError, match=r"task\.image_size=\[84\]: give height and width"):
        compose(command, [*NEEDED, "task.image_size=84"])


def test_mandatory_values(command: Command) -> None:
    with pytest.raises(UserError, match=r"base is required: add base=diffusion\|run"):
        compose(command, ["name=x"])
    with pytest.raises(UserError, match=r"name is required: add name=…  \(Name of the run.\)"):
        compose(command, ["base=diffusion"])
    with pytest.raises(UserError, match=r"base\.path is required"):
        compose(command, ["name=x", "base=run"])


def test_a_dataclass_may_refuse_values(command: Command) -> None:
    with pytest.raises(UserError, match=r"method\.n_step=0: must be at least 1"):
        compose(command, [*NEEDED, "method=residual", "method.n_step=0"])


def test_sizes_that_numpy_or_torch_would_refuse_later_are_refused_first() -> None:
    for name, argument in (("collect", "seed=-1"), ("serve", "threads=0")):
        with pytest.raises(UserError, match=f"{argument}: it must be at least"):
            compose(load_command(name), ["task=lift" if name == "collect" else "policy=x", argument])
    with pytest.raises(UserError, match="seed=99999999999999999999: it must be at most"):
        compose(load_command("serve"), ["policy=x", "seed=99999999999999999999"])


def test_help_shows_every_option_of_what_is_chosen(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    print_help(command, ["method=residual"])
    text = " ".join(capsys.readouterr().out.split())
    assert "method=residual Method. (bc | residual)" in text
    assert "base=… (required) Base policy. (diffusion | run, or the path of a run)" in text
    assert "method.n_step=3 Steps of the n-step return. (int)" in text
    assert "method.scale=[0.1]" in text
    assert "name=… (required) Name of the run. (str)" in text
    assert "limit=null Hours after which to stop. (float or null)" in text
    assert "method.steps" not in text
    assert "options of base: robot-rl sample base=… --help" in text


def test_type_names() -> None:
    assert type_name(dict[str, int | None]) == "dict[str, int or null]"


def test_load_group() -> None:
    task = load_group("task", "lift", TaskConfig)
    assert (task.env, task.horizon, task.state_keys[0]) == ("Lift", 200, "robot0_eef_pos")
    with pytest.raises(UserError, match=r"task=lft: there is no such task; did you mean task=lift\?"):
        load_group("task", "lft", TaskConfig)


# The real commands.


def test_tasks_load() -> None:
    names = sorted(path.stem for path in asset_path("configs", "task").glob("*.yaml"))
    assert {"lift", "can", "square", "stack", "door"} <= set(names)
    for name in names:
        task = load_group("task", name, TaskConfig)
        # The same task, observed by cameras: with its initial states.
        assert task.name == name.removesuffix("_image")
        assert task.state_keys


def schemas_of(command: Command) -> set[type]:
    return {command.config, *(schema for group in command.groups.values() for schema in group.values())}


@pytest.mark.parametrize("name", command_names())
def test_every_field_says_what_it_means(name: str) -> None:
    for schema in schemas_of(load_command(name)):
        assert is_dataclass(schema)
        for field in fields(schema):
            assert meanings(schema).get(field.name, "").endswith((".", "…", ")", "]")), (schema, field.name)


@pytest.mark.parametrize("name", command_names())
def test_every_choice_composes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = load_command(name)
    print_help(command)
    for group, schemas in command.groups.items():
        assert set(schemas) - {"*"} <= set(command.choices(group))
    groups = []
    for group, schemas in command.groups.items():
        # Where all choices have the same options, one says as much as all; `train` composes every task.
        choices = command.choices(group)[: 1 if set(schemas) == {"*"} else None]
        groups.append([f"{group}={choice}" for choice in choices])
    alone = [group for group in groups if len(group) == 1]
    # Choices of several groups at a time, since each composition takes a quarter of a second.
    for choices in (*alone, *zip_longest(*(group for group in groups if group not in alone))):
        print_help(command, chosen := [choice for choice in choices if choice])
        said = capsys.readouterr().out
        assert all(choice in said for choice in chosen)


@pytest.mark.parametrize("former", sorted(FORMER_NAMES))
def test_a_renamed_option_answers_with_its_new_name(former: str) -> None:
    for new in FORMER_NAMES[former]:
        group, _, key = new.rpartition(".")
        name, arguments = "train", ["task=lift", "method=expo"]
        if group == "method":
            types = {method: METHODS[method].config_type for method in METHODS}
            chosen = next(m for m, kind in types.items() if key in {field.name for field in fields(kind)})
            arguments = ["task=lift", f"method={chosen}"]
        elif group:
            arguments.append(f"{group}=on")
        else:
            name, arguments = "bench methods", []
        with pytest.raises(UserError, match=f"^{former} is now {new}: write {new}=1$"):
            compose(load_command(name), [*arguments, f"{former}=1"])


def test_choices_that_contradict_each_other_are_named_in_one_line() -> None:
    with pytest.raises(UserError) as refused:
        compose(load_command("train"), ["method=bc", "hil=on", "data=x.zarr"])
    answer = str(refused.value)
    assert "method=bc takes no method.num_envs, which hil=on sets: leave one of them out" in answer
    assert "\n" not in answer
