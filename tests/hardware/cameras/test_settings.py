"""What a user may write about a camera."""

import msgspec
import pytest

from robot_rl.hardware.cameras.settings import CameraSettings, OpenCV, Sim, default_limits

SPEC = {"name": "wrist", "serial": "1", "width": 64, "height": 48, "rate": 30.0}


def read(**fields: object) -> CameraSettings:
    return msgspec.convert({"spec": SPEC, **fields}, CameraSettings)


def test_a_source_is_named_by_its_type() -> None:
    settings = read(source={"type": "realsense", "stream": "depth"})
    assert settings == msgspec.json.decode(msgspec.json.encode(settings), type=CameraSettings)


@pytest.mark.parametrize(
    ("source", "encoding"),
    [
        ({"type": "realsense"}, "jpeg"),
        ({"type": "opencv"}, "jpeg"),
        ({"type": "custom", "factory": "cameras:Own"}, "jpeg"),
        ({"type": "realsense", "stream": "depth"}, "raw"),
        ({"type": "sim", "scene": "scene.xml", "feed": "ipc:///tmp/feed"}, "png"),
    ],
)
def test_images_are_encoded_unless_something_else_is_said(source: dict[str, str], encoding: str) -> None:
    assert read(source=source).resolved_encoding == encoding
    assert read(source=source, encoding="raw").resolved_encoding == "raw"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"source": {"type": "webcam"}}, "webcam"),
        ({"source": {"type": "realsense", "streem": "depth"}}, "streem"),
        ({"source": {"type": "custom", "factory": "os.system('true')"}}, "factory"),
        ({"source": {"type": "realsense", "stream": "depth"}, "encoding": "jpeg"}, "JPEG cannot hold depth"),
        ({"source": {"type": "realsense", "stream": "depth"}, "encoding": "png"}, "PNG cannot hold depth"),
        ({"source": {"type": "realsense"}, "spec": {**SPEC, "rate": 0.0}}, "not possible"),
        ({"source": {"type": "realsense"}, "spec": {**SPEC, "width": 10**6}}, "not possible"),
        ({"source": {"type": "realsense"}, "spec": {**SPEC, "width": 8192, "height": 8192}}, "not possible"),
        ({"source": {"type": "realsense"}, "spec": {**SPEC, "name": "left wrist"}}, "matching regex"),
        ({"source": {"type": "realsense"}, "spec": {**SPEC, "serial": ""}}, "needs a serial"),
        ({"source": {"type": "realsense"}, "capture": [32, 48]}, "32x48 cannot be scaled down to 64x48"),
        ({"source": {"type": "realsense", "stream": "depth"}, "capture": [640, 480]}, "depth is not scaled"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        read(**fields)


def test_a_camera_that_draws_a_scene_may_take_longer_to_start() -> None:
    drawn = Sim(scene="scene.mjb", feed="ipc:///feed")
    assert default_limits(drawn).start_ms > default_limits(OpenCV()).start_ms
