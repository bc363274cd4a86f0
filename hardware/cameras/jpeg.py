"""Images as JPEG files, for networks that raw ones would fill."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from hardware.protocol.arrays import Frame
from hardware.protocol.codec import ProtocolError
from hardware.protocol.messages import Code


def compress(image: NDArray[np.uint8], quality: int) -> bytes:
    """A JPEG file of an image [H, W, 3]."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def decompress(frame: Frame, payload: memoryview) -> NDArray[np.uint8]:
    """The image [H, W, 3] of a JPEG file.

    Raises:
        ProtocolError: it is none, or of another size than its header says.
    """
    try:
        with Image.open(io.BytesIO(payload), formats=("JPEG",)) as image:
            # Known before anything is decompressed.
            if image.size != (frame.width, frame.height):
                raise ProtocolError(Code.MALFORMED, f"a JPEG of {image.size} is not what its header says")
            return np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise ProtocolError(Code.MALFORMED, f"a JPEG that cannot be read: {error}") from None
