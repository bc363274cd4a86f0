"""Images as JPEG or PNG files, for networks and disks that raw ones would fill."""

import io
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from robot_rl.hardware.protocol.arrays import Frame, pixels
from robot_rl.hardware.protocol.codec import ProtocolError
from robot_rl.hardware.protocol.messages import Code

_FORMATS: Final = {"jpeg": "JPEG", "png": "PNG"}
_PNG_LEVEL: Final = 1
"""Of zlib: the quickest. What is drawn is as small as with others."""


def compress(image: NDArray[np.uint8], quality: int) -> bytes:
    """A JPEG file of an image [H, W, 3]; lossy."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def compress_png(image: NDArray[np.uint8]) -> bytes:
    """A PNG file of an image [H, W, 3]; exact."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def image_of(frame: Frame, payload: memoryview) -> NDArray:
    """What a message's payload shows, read-only.

    Raises:
        ProtocolError: another thing than its header says.
    """
    return decompress(frame, payload) if frame.encoding in _FORMATS else pixels(frame, payload)


def decompress(frame: Frame, payload: memoryview) -> NDArray[np.uint8]:
    """The image [H, W, 3] of a JPEG or PNG file.

    Raises:
        ProtocolError: it is none, or of another size than its header says.
    """
    form = _FORMATS[frame.encoding]
    try:
        with Image.open(io.BytesIO(payload), formats=(form,)) as image:
            # Known before anything is decompressed.
            if image.size != (frame.width, frame.height):
                raise ProtocolError(Code.MALFORMED, f"a {form} of {image.size} is not what its header says")
            return np.asarray(image.convert("RGB"))
    # A damaged PNG may raise the last two.
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise ProtocolError(Code.MALFORMED, f"a {form} that cannot be read: {error}") from None
