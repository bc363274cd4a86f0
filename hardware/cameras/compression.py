"""Encodes and decodes images as JPEG or PNG files."""

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
"""Fastest zlib level. Rendered images are as small as with higher levels."""


def compress(image: NDArray[np.uint8], quality: int) -> bytes:
    """Encode an image [H, W, 3] as JPEG (lossy)."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def compress_png(image: NDArray[np.uint8]) -> bytes:
    """Encode an image [H, W, 3] as PNG (lossless)."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def image_of(frame: Frame, payload: memoryview) -> NDArray:
    """Decode a message's payload to a read-only image.

    Raises:
        ProtocolError: if the payload does not match its header.
    """
    return decompress(frame, payload) if frame.encoding in _FORMATS else pixels(frame, payload)


def decompress(frame: Frame, payload: memoryview) -> NDArray[np.uint8]:
    """Decode a JPEG or PNG file to an image [H, W, 3].

    Raises:
        ProtocolError: if the file is invalid, or its size differs from the header.
    """
    form = _FORMATS[frame.encoding]
    try:
        with Image.open(io.BytesIO(payload), formats=(form,)) as image:
            # Checked before decompressing.
            if image.size != (frame.width, frame.height):
                raise ProtocolError(
                    Code.MALFORMED, f"a {form} of {image.size} does not have the size in its header"
                )
            return np.asarray(image.convert("RGB"))
    # A damaged PNG may raise SyntaxError or ValueError.
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise ProtocolError(Code.MALFORMED, f"a {form} that cannot be decoded: {error}") from None
