"""Between the threads of a camera's process."""

import threading

from robot_rl.hardware.cameras.publisher import DropOldestQueue


def test_a_full_queue_takes_what_comes_and_loses_the_oldest() -> None:
    pending: DropOldestQueue[int] = DropOldestQueue(3)
    for item in range(10):
        pending.put(item)
    assert [pending.get(0.0) for _ in range(4)] == [7, 8, 9, None]


def test_whoever_waits_is_woken_by_what_comes() -> None:
    pending: DropOldestQueue[int] = DropOldestQueue(1)
    got: list[int | None] = []
    waiting = threading.Thread(target=lambda: got.append(pending.get(60.0)))
    waiting.start()
    pending.put(5)
    waiting.join(30.0)
    assert got == [5]
