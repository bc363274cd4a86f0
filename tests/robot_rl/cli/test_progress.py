"""Progress on a terminal and elsewhere, with a clock of the test's own."""

import io

from robot_rl.cli.progress import Progress, _duration


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_come_every_ten_seconds() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress(100, "collect", "episodes", stream=out, clock=clock) as progress:
        for step in range(1, 101):
            clock.now += 0.5
            progress.update(step, success=step / 200)
    lines = out.getvalue().splitlines()
    assert lines[0] == "collect: 20/100 episodes, success 0.1, 2 episodes/s, 0:40 left"
    assert lines[-1] == "collect: 100/100 episodes, success 0.5, 2 episodes/s"
    assert len(lines) == 5


def test_rate_is_that_of_the_last_half_minute_and_of_this_process() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress(2000, "train", stream=out, clock=clock, start=1000) as progress:
        for step in range(1000, 1100):
            clock.now += 1
            progress.update(step + 1)
        assert "1 steps/s, 15:00 left" in out.getvalue().splitlines()[-1]
        for step in range(1100, 1600, 10):
            clock.now += 1
            progress.update(step + 10, figure="good")
    assert out.getvalue().splitlines()[-1] == "train: 1600/2000 steps, figure good, 10 steps/s, 0:40 left"


def test_nothing_is_done_yet() -> None:
    out = io.StringIO()
    with Progress(5, "work", stream=out, clock=Clock()):
        pass
    assert out.getvalue() == "work: 0/5 steps\n"


def test_note_has_a_line_of_its_own() -> None:
    for out in (io.StringIO(), Terminal()):
        with Progress(5, "work", stream=out, clock=Clock()) as progress:
            progress.note("checkpoint [saved]")
        assert any(line.rstrip().endswith("checkpoint [saved]") for line in out.getvalue().splitlines())


def test_bar_on_a_terminal(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    clock, out = Clock(), Terminal()
    with Progress(10, "train", stream=out, clock=clock) as progress:
        clock.now += 1
        progress.update(2, success=0.25)
    assert "2/10 steps, success 0.25, 2 steps/s, 0:04 left" in out.getvalue()


def test_durations() -> None:
    assert [_duration(s) for s in (5.4, 65, 3665)] == ["0:05", "1:05", "1:01:05"]
