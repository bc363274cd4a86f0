"""Motors that answer protocol 2.0 on a pseudo terminal."""

import math
import os
import pty
import select
import struct
import threading
import tty
from typing import Self

from dynamixel_sdk import PacketHandler

_HEAD = b"\xff\xff\xfd\x00"
_SYNC_READ, _STATUS, _BROADCAST = 0x82, 0x55, 0xFE


class Bus:
    """Answers a sync read of present positions; `angles` are what the motors stand at, rad."""

    def __init__(self, angles: dict[int, float]) -> None:
        self.angles = angles
        self.silent: set[int] = set()
        """Motors that do not answer."""
        self.damaged: set[int] = set()
        """Motors whose answers have a bit turned."""
        self.error = 0
        """What they say of their hardware."""
        self.reads = 0
        self._crc = PacketHandler(2.0).updateCRC
        self._ours, self._its = pty.openpty()
        tty.setraw(self._its)
        self.path = os.ttyname(self._its)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()

    def unplug(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        os.close(self._its)
        os.close(self._ours)

    def _run(self) -> None:
        unread = b""
        while not self._ended.is_set():
            if not select.select([self._ours], (), (), 0.02)[0]:
                continue
            unread += os.read(self._ours, 4096)
            while (begin := unread.find(_HEAD)) >= 0 and len(unread) >= begin + 7:
                length = struct.unpack_from("<H", unread, begin + 5)[0]
                end = begin + 7 + length
                if len(unread) < end:
                    break
                self._answer(unread[begin:end])
                unread = unread[end:]

    def _answer(self, packet: bytes) -> None:
        assert packet[4] == _BROADCAST
        assert packet[7] == _SYNC_READ
        assert struct.unpack("<H", packet[-2:])[0] == self._crc(0, packet, len(packet) - 2)
        address, size = struct.unpack_from("<HH", packet, 8)
        assert (address, size) == (132, 4)
        self.reads += 1
        for motor in packet[12:-2]:
            if motor in self.silent or motor not in self.angles:
                continue
            position = struct.pack("<i", round(self.angles[motor] / math.tau * 4096))
            answer = _HEAD + bytes((motor,)) + struct.pack("<HBB", 8, _STATUS, self.error) + position
            answer += struct.pack("<H", self._crc(0, answer, len(answer) + 2 - 2))
            if motor in self.damaged:
                answer = answer[:9] + bytes((answer[9] ^ 1,)) + answer[10:]
            os.write(self._ours, answer)
