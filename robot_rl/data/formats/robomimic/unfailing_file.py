"""A file for HDF5 to write to that keeps errors to itself: HDF5 2.0 crashes if a write fails."""

import io
from typing import Any


class UnfailingFile(io.FileIO):
    """A file that claims to have written everything; `check` tells whether it has.

    After a failed write, as on a full disk, HDF5 ends the process by a segmentation fault when it closes the
    file.
    """

    _error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all bytes, or none after an error."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and self._error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size, unless that fails."""
        try:
            return super().truncate(size)
        except OSError as error:
            self._error = self._error or error
            return self.tell() if size is None else size

    def check(self) -> None:
        """Raises OSError if something could not be written."""
        if self._error is not None:
            raise self._error
