"""One of each message, with all fields away from their defaults, and a robot."""

from hardware.protocol import messages as m
from hardware.spec import CameraSpec, GripperSpec, Limits, RobotSpec

SPEC = RobotSpec(
    name="bench",
    driver="sim",
    space="joint",
    modes=("joint_position", "cartesian_pose"),
    joints=("shoulder", "elbow"),
    home=(0.0, 0.5),
    rate=100.0,
    limits=Limits(
        joint_lower=(-1.0, -1.0),
        joint_upper=(1.0, 1.0),
        joint_velocity=(1.0, 1.0),
        joint_acceleration=(5.0, 5.0),
        joint_jerk=(50.0, 50.0),
        workspace_lower=(-1.0, -1.0, 0.0),
        workspace_upper=(1.0, 1.0, 1.0),
        linear_velocity=0.5,
        linear_acceleration=2.0,
        linear_jerk=20.0,
        angular_velocity=1.0,
        angular_acceleration=4.0,
        angular_jerk=40.0,
        lead_joint=0.1,
        lead_linear=0.02,
        lead_angular=0.1,
    ),
    gripper=GripperSpec(width=0.08, force=20.0, speed=0.1),
    cameras=(CameraSpec(name="wrist", serial="1234", width=640, height=480, rate=30.0),),
    sensors={"cube": 7},
    calibration={"wrist": (0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 1.0)},
)

_E = {"src": "a-client", "seq": 3, "tm": 10**15, "tw": 1_700_000_000_000_000_000, "id": 9}
_EVENT = m.Event(**_E, what="refused", text="too old", who="carl", code="stale")

CLIENT: tuple[m.ClientMessage, ...] = (
    m.Hello(**_E, protocol=m.PROTOCOL, name="carl", role="policy"),
    m.TimeSync(**_E),
    m.AcquireLease(**_E, kind="human", preempt=True),
    m.ReleaseLease(**_E, lease=4),
    m.Arm(**_E, spec_sha256=SPEC.sha256),
    m.Disarm(**_E),
    m.Pause(**_E),
    m.Resume(**_E),
    m.AcknowledgeFault(**_E, reason="looked at it"),
    m.Home(**_E, lease=4),
    m.GetSpec(**_E),
    m.EventsSince(**_E, after=17),
    m.Command(
        **_E,
        lease=4,
        mode="cartesian_delta",
        data=(0.01, 0.0, -0.01, 0.0, 0.0, 1.5),
        gripper=0.25,
        ttl_ms=50,
        t_sent=10**12,
        t_target=10**12 + 5,
        obs_seq=99,
    ),
    m.SampleNow(**_E),
    m.Stop(**_E, reason="a hand in the way"),
)

SERVER: tuple[m.ServerMessage, ...] = (
    m.Welcome(
        **_E,
        protocol=m.PROTOCOL,
        session="s",
        boot_id="b",
        spec=SPEC,
        spec_sha256=SPEC.sha256,
        lease_ms=100,
        role="observer",
    ),
    m.TimeSyncReply(**_E, t0=1, t1=2),
    m.Done(**_E, mode=m.Mode.ARMED, lease=5),
    m.Ack(**_E, command=3, applied=(0.5, 0.5), clipped=("workspace",), t_applied=7),
    m.Refused(**_E, code=m.Code.STALE, reason="312 ms old", command=3),
    m.State(
        **_E,
        t_sample=5,
        q=(0.1, 0.2),
        dq=(0.0, 0.0),
        tau=(1.0, 2.0),
        position=(0.1, 0.2, 0.3),
        quaternion=(0.0, 0.0, 0.0, 1.0),
        wrench=(0.0,) * 6,
        setpoint=(0.1, 0.2),
        goal_seq=3,
        mode=m.Mode.POLICY,
        fault="lease_lost",
        lease_holder="carl",
        gripper=m.Gripped(opening=0.5, t=4, goal=1.0),
        sensors={"cube": (0.0,) * 7},
        loop=m.Loop(late_us_p50=90.0, late_us_p99=300.0, overruns=1, ticks=1000),
    ),
    _EVENT,
    m.Events(**_E, events=(_EVENT, _EVENT), oldest=1),
)
