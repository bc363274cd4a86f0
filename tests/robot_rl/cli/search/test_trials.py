"""The order in which the trials of a search begin."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from robot_rl.cli.search.trials import Trials


def test_trials_begin_in_their_order_whichever_thread_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robot_rl.cli.search.trials._POLL", 0.01)
    launcher: Any = SimpleNamespace(stopping=False)
    nothing: Any = None
    trials = Trials(nothing, nothing, nothing, launcher)
    begun: list[int] = []
    trials._begin = begun.append  # type: ignore[method-assign]
    trials._waiting, trials._places = [1, 2], 2
    later = threading.Thread(target=trials._begin_when_free, args=(2,))
    later.start()
    time.sleep(0.1)
    assert begun == []
    trials._begin_when_free(1)
    later.join()
    assert begun == [1, 2]
