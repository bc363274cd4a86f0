"""A UR5e's controller as a process, as far as ur_rtde needs one: RTDE, the script port and the dashboard.

Run as a program it prints its address and then answers each line on its stdin with one of JSON, its state:
`state`, `reset`, `protective_stop <seconds>` (for which it cannot be released), `emergency_stop on|off`,
`stop_program`, `guide <rad>` (each joint, by hand), `remote on|off`, `silent on|off`, `drop` (all
connections). It ends with its stdin.

What is real: ur_rtde's client with its handshake, recipes and registers, and the upload of its script. What
is not: nothing runs URScript. Once the script is there, this program does with the registers what the main
loop of the script does, for servoj and the commands in `Program._regular`; any other ends this process.
The joints follow their target without inertia, limited in speed; there is no payload, force or collision.
"""

import asyncio
import json
import math
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

PERIOD = 0.002
"""s"""
VERSION = (5, 12, 0, 1101319)
HOME = (-0.3024, -1.6934, 1.9246, -1.802, -1.5708, -1.8732)
DH = (
    (0, 0.1625, math.pi / 2),
    (-0.425, 0, 0),
    (-0.3922, 0, 0),
    (0, 0.1333, math.pi / 2),
    (0, 0.0997, -math.pi / 2),
    (0, 0.0996, 0),
)
"""a, d, alpha of each joint, as Universal Robots publishes them: m, rad."""
LINKS = [
    np.array(
        [
            [1, 0, 0, a],
            [0, math.cos(alpha), -math.sin(alpha), 0],
            [0, math.sin(alpha), math.cos(alpha), d],
            [0, 0, 0, 1],
        ]
    )
    for a, d, alpha in DH
]
BRAKING = 8.0
"""rad/s^2, at any stop."""
TOP_SPEED = 3.14
"""rad/s"""

STOPPED, PLAYING = 1, 2
RUNNING, NORMAL, PROTECTIVE, EMERGENCY = 7, 1, 3, 7
READY, DONE = 1, 2
SERVOJ, SERVO_STOP, SET_TCP, SET_WATCHDOG, STOP_SCRIPT = 11, 16, 29, 35, 255

FORMATS = {
    "DOUBLE": "d",
    "INT32": "i",
    "UINT32": "I",
    "UINT8": "B",
    "VECTOR6D": "6d",
    "VECTOR3D": "3d",
}


class Robot:
    """The arm and its state. Its time goes by in steps, not by a clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self.reset()

    def reset(self) -> None:
        self.q = np.array(HOME)
        self.dq = np.zeros(6)
        self.target: np.ndarray | None = None
        self.stiffness = 10.0
        self.set_tcp([0.0] * 6)
        self.protective = False
        self.locked = 0.0
        """When a protective stop may be released."""
        self.emergency = False
        self.ints = {"input": [0] * 48, "output": [0] * 48}
        self.doubles = {"input": [0.0] * 48, "output": [0.0] * 48}
        self.fed = 0.0
        """When the client last wrote the command register."""
        self.program: Program | None = None

    def step(self) -> None:
        self.time += PERIOD
        if self.program is not None:
            self.program.step()
        wanted = np.zeros(6)
        if self.target is not None:
            wanted = np.clip(self.stiffness * (self.target - self.q), -TOP_SPEED, TOP_SPEED)
        change = BRAKING * PERIOD if self.target is None else math.inf
        self.dq = self.dq + np.clip(wanted - self.dq, -change, change)
        self.q = self.q + self.dq * PERIOD

    def set_tcp(self, tcp: list[float]) -> None:
        """[6] m and rotation vector, in the flange."""
        self.tcp = tcp
        self.tool = np.eye(4)
        self.tool[:3, :3] = Rotation.from_rotvec(tcp[3:]).as_matrix()
        self.tool[:3, 3] = tcp[:3]

    def halt(self) -> None:
        """Brake, as at every stop of the safety system."""
        self.program = self.target = None

    def pose(self) -> np.ndarray:
        """[6] m and rotation vector, in the frame of the teach pendant."""
        matrix = np.eye(4)
        turn = np.eye(4)
        for q, link in zip(self.q.tolist(), LINKS, strict=True):
            c, s = math.cos(q), math.sin(q)
            turn[0, 0], turn[0, 1], turn[1, 0], turn[1, 1] = c, -s, s, c
            matrix = matrix @ turn @ link
        matrix = matrix @ self.tool
        quaternion, rotation = np.empty(4), np.empty(3)
        # At 500 Hz there is no time for scipy's.
        mujoco.mju_mat2Quat(quaternion, matrix[:3, :3].ravel())
        mujoco.mju_quat2Vel(rotation, quaternion, 1.0)
        return np.concatenate([matrix[:3, 3], rotation])

    def safety_mode(self) -> int:
        return EMERGENCY if self.emergency else PROTECTIVE if self.protective else NORMAL

    def variable(self, name: str) -> tuple[str, Callable[[], Any]] | None:
        """Type of an RTDE variable, and what tells its value."""
        if "_register_" in name:
            kind, number = name.rsplit("_", 1)
            side, base, _ = kind.split("_")
            kept = "ints" if base == "int" else "doubles"
            return ("INT32" if base == "int" else "DOUBLE"), lambda: getattr(self, kept)[side][int(number)]
        return {
            "timestamp": ("DOUBLE", lambda: self.time),
            "actual_q": ("VECTOR6D", lambda: self.q),
            "actual_qd": ("VECTOR6D", lambda: self.dq),
            "actual_TCP_pose": ("VECTOR6D", self.pose),
            "actual_TCP_force": ("VECTOR6D", lambda: [1.0, 2.0, 3.0, 0.1, 0.2, 0.3]),
            "robot_mode": ("INT32", lambda: RUNNING),
            "safety_mode": ("INT32", self.safety_mode),
            "runtime_state": ("UINT32", lambda: STOPPED if self.program is None else PLAYING),
            "speed_scaling": ("DOUBLE", lambda: 1.0),
            "robot_status_bits": ("UINT32", lambda: 0b01 | (self.program is not None) << 1),
            "safety_status_bits": ("UINT32", self._safety_bits),
        }.get(name)

    def _safety_bits(self) -> int:
        normal = self.safety_mode() == NORMAL
        return normal | self.protective << 2 | self.emergency << 6 | self.emergency << 7


class Program:
    """What ur_rtde's control script does in each of the controller's cycles."""

    def __init__(self, robot: Robot, script: str) -> None:
        assert script.startswith("def rtde_control():")
        for needed in ("servoj(", "rtde_set_watchdog(", "read_input_integer_reg(0)"):
            assert needed in script
        self._robot = robot
        self._offset = 24 if "reg_offset_int = # int register offset\n24" in script else 0
        assert self._offset == 0, "the upper registers are not covered"
        self._executing = False
        self._feeding: float | None = None
        self._stopping = False
        self._signal(READY)

    def step(self) -> None:
        robot = self._robot
        if self._feeding is not None and robot.time - robot.fed > self._feeding:
            robot.halt()
            return
        if self._stopping:
            if np.abs(robot.dq).max() > 1e-6:
                return
            self._stopping = False
            self._signal(DONE)
        command = robot.ints["input"][0]
        if command == SERVOJ:
            floats = robot.doubles["input"]
            robot.target = np.array(floats[:6])
            robot.stiffness = 1 / floats[9]
            self._signal(READY)
        elif command == 0:
            self._executing = False
            self._signal(READY)
        elif not self._executing:
            self._executing = True
            self._regular(command)

    def _regular(self, command: int) -> None:
        robot = self._robot
        floats = robot.doubles["input"]
        if command == STOP_SCRIPT:
            robot.halt()
            return
        if command == SERVO_STOP:
            robot.target = None
            self._stopping = True
            return
        if command == SET_TCP:
            robot.set_tcp(floats[:6])
        elif command == SET_WATCHDOG:
            self._feeding = 1 / floats[0]
        else:
            raise NotImplementedError(f"command {command} of the control script")
        self._signal(DONE)

    def _signal(self, what: int) -> None:
        self._robot.ints["output"][0] = what


class Rtde:
    """One client of port 30004."""

    def __init__(self, robot: Robot, writer: asyncio.StreamWriter) -> None:
        self._robot = robot
        self._writer = writer
        self._outputs: list[tuple[str, Callable[[], Any]]] = []
        self._inputs: list[list[str]] = []
        self._every = 1
        self._steps = 0
        self._started = False

    def took(self, kind: int, payload: bytes) -> None:
        match chr(kind):
            case "V":
                self._send(kind, b"\x01" if payload == b"\x00\x02" else b"\x00")
            case "v":
                self._send(kind, struct.pack(">4I", *VERSION))
            case "O":
                (frequency,) = struct.unpack(">d", payload[:8])
                self._every = max(1, round(1 / (frequency * PERIOD)))
                names = _names(payload[8:])
                self._outputs = [known for name in names if (known := self._robot.variable(name))]
                assert len(self._outputs) == len(names), names
                self._send(kind, b"\x01" + ",".join(kind for kind, _ in self._outputs).encode())
            case "I":
                self._inputs.append(_names(payload))
                types = ",".join(map(self._type, self._inputs[-1]))
                self._send(kind, bytes([len(self._inputs)]) + types.encode())
            case "S" | "P":
                self._started = chr(kind) == "S"
                self._send(kind, b"\x01")
            case "U":
                self._write(self._inputs[payload[0] - 1], payload[1:])
            case other:
                raise NotImplementedError(f"RTDE package {other}")

    def push(self) -> None:
        """Send the state, if it is time."""
        self._steps += 1
        if not self._started or self._steps % self._every:
            return
        parts = [b"\x01"]
        for kind, tell in self._outputs:
            value = tell()
            many = value if kind.startswith("VECTOR") else [value]
            parts.append(struct.pack(">" + FORMATS[kind], *many))
        self._send(ord("U"), b"".join(parts))

    def _write(self, names: list[str], data: bytes) -> None:
        types = [self._type(name) for name in names]
        values = struct.unpack(">" + "".join(FORMATS[kind] for kind in types), data)
        for name, value in zip(names, values, strict=True):
            kind, number = name.rsplit("_", 1)
            registers = self._robot.ints if "_int_" in name else self._robot.doubles
            registers["input"][int(number)] = value  # type: ignore[call-overload]
            if kind == "input_int_register" and number == "0":
                self._robot.fed = self._robot.time

    def _type(self, name: str) -> str:
        variable = self._robot.variable(name)
        if variable is not None:
            return variable[0]
        # Inputs and outputs that a driver may set up without ever using them.
        return "UINT8" if "digital" in name or "analog_output_" in name else "NOT_FOUND"

    def _send(self, kind: int, payload: bytes) -> None:
        self._writer.write(struct.pack(">HB", len(payload) + 3, kind) + payload)


def _names(text: bytes) -> list[str]:
    return [name for name in text.decode().split(",") if name]


class Controller:
    """The three ports and the arm behind them."""

    def __init__(self) -> None:
        self.robot = Robot()
        self.clients: set[Rtde] = set()
        self.writers: set[asyncio.StreamWriter] = set()
        self.silent = False
        self.remote = True
        self.programs = 0
        """How many scripts have arrived."""

    async def rtde(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Rtde(self.robot, writer)
        self.clients.add(client)
        try:
            while True:
                size, kind = struct.unpack(">HB", await reader.readexactly(3))
                client.took(kind, await reader.readexactly(size - 3))
        finally:
            self.clients.discard(client)

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            text = (await reader.readuntil(b"\nend\n")).decode()
            robot = self.robot
            if robot.safety_mode() == NORMAL:
                robot.halt()
                # A real one takes a moment, too.
                await asyncio.sleep(0.02)
                robot.program = Program(robot, text)
                self.programs += 1

    async def dashboard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"Connected: Universal Robots Dashboard Server\n")
        while line := (await reader.readuntil(b"\n")).decode().strip():
            writer.write((self._answer(line) + "\n").encode())

    def _answer(self, line: str) -> str:
        match line:
            case "PolyscopeVersion":
                return "URSoftware {}.{}.{}.{} (Mar 22 2022)".format(*VERSION)
            case "get serial number":
                return "20225500001"
            case "is in remote control":
                return "true" if self.remote else "false"
            case "robotmode":
                return "Robotmode: RUNNING"
            case "safetystatus":
                robot = self.robot
                return "Safetystatus: " + (
                    "ROBOT_EMERGENCY_STOP"
                    if robot.emergency
                    else "PROTECTIVE_STOP"
                    if robot.protective
                    else "NORMAL"
                )
            case "stop":
                self.robot.halt()
                return "Stopped"
            case "close safety popup":
                return "closing safety popup"
            case "unlock protective stop":
                if self.robot.time < self.robot.locked:
                    return "Cannot unlock protective stop until 5s after occurrence."
                self.robot.protective = False
                return "Protective stop releasing"
            case _:
                raise NotImplementedError(f"dashboard command {line!r}")

    def told(self, words: list[str]) -> dict[str, Any]:
        robot = self.robot
        match words:
            case ["state"]:
                pass
            case ["reset"]:
                self.silent, self.remote = False, True
                robot.reset()
            case ["protective_stop", seconds]:
                robot.protective, robot.locked = True, robot.time + float(seconds)
                robot.halt()
            case ["emergency_stop", state]:
                robot.emergency = state == "on"
                robot.halt()
            case ["stop_program"]:
                robot.halt()
            case ["guide", angle]:
                robot.q = robot.q + float(angle)
            case ["drop"]:
                for writer in self.writers:
                    writer.close()
            case ["remote", state]:
                self.remote = state == "on"
            case ["silent", state]:
                self.silent = state == "on"
            case _:
                raise ValueError(f"what is {words}?")
        return {
            "time": round(robot.time * 1e9),
            "q": list(robot.q),
            "dq": list(robot.dq),
            "playing": robot.program is not None,
            "watched": robot.program is not None and robot.program._feeding is not None,
            "protective": robot.protective,
            "tcp": robot.tcp,
            "clients": len(self.clients),
            "programs": self.programs,
        }

    def served(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.add(writer)
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            except Exception:
                # What this fake does not cover must not pass unseen.
                os._exit(3)
            finally:
                self.writers.discard(writer)
                writer.close()

        return connection

    async def run(self, address: str) -> None:
        for port, serve in ((30004, self.rtde), (30003, self.script), (29999, self.dashboard)):
            await asyncio.start_server(self.served(serve), address, port, limit=2**20)
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop.add_reader(sys.stdin, lambda: lines.put_nowait(sys.stdin.readline()))
        print(address, flush=True)
        due = loop.time()
        while True:
            self.robot.step()
            if not self.silent:
                for client in list(self.clients):
                    client.push()
            while not lines.empty():
                line = lines.get_nowait()
                if not line:
                    # Not by returning: asyncio would complain of every connection.
                    os._exit(0)
                print(json.dumps(self.told(line.split())), flush=True)
            due = max(due + PERIOD, loop.time())
            await asyncio.sleep(due - loop.time())


if __name__ == "__main__":
    own = os.getpid()
    asyncio.run(Controller().run(f"127.{own % 250 + 1}.{own // 250 % 250 + 1}.2"))
