"""Opens the zarr groups of datasets safely: a dataset may come from an untrusted source.

Some of zarr's codecs run code contained in the chunks (pickle), and arrays of objects need such codecs. So
the description of every array is checked before zarr reads it. Arrays must hold plain numbers, and their
chunks must be compressed by one of a few known compressors and hold whole steps.
"""

import asyncio
import math
import os
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

from robot_rl.data.kinds import how_to_convert
from robot_rl.files.durable import make_folder, replace_file

_GROUPS: Final = ("meta", "data")
KINDS: Final = "biuf"
"""Kinds of numpy's dtypes that a dataset holds: bool, integers and floats."""
_WHOLE_CHUNKS: Final = partial(zarr.config.set, {"array.write_empty_chunks": True})
"""Context in which arrays are opened or created so that chunks of zeros are written too."""
_LARGEST_CHUNK: Final = 1 << 30
_MOST_ROOM: Final = 10_000_000
"""Most rows that a shape may have beyond those in files, as a killed writer leaves them."""
_UNDECODABLE: Final = (OSError, EOFError, RuntimeError, ValueError, TypeError, MemoryError, zlib.error)
"""What the compressors raise for damaged chunks."""
_Size = Annotated[int, msgspec.Meta(ge=0)]
_Chunk = Annotated[int, msgspec.Meta(ge=1)]


class _Compressor(msgspec.Struct):
    id: Literal["blosc", "zstd", "lz4", "gzip", "zlib"]


class _Description(msgspec.Struct):
    """Accepted content of `.zarray`."""

    zarr_format: Literal[2]
    shape: Annotated[list[_Size], msgspec.Meta(min_length=1)]
    chunks: list[_Chunk]
    dtype: Annotated[str, msgspec.Meta(pattern=rf"^[<>|][{KINDS}][0-9]+$")]
    compressor: _Compressor | None
    filters: None
    fill_value: bool | int | float | str | None


@dataclass(frozen=True)
class Store:
    """An open zarr group: root, arrays of `data` and `meta` by name, and attributes of `meta`."""

    root: Any
    data: dict[str, Any]
    meta: dict[str, Any]
    attributes: dict[str, Any]

    def add(self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Create an array in `data`."""
        with _WHOLE_CHUNKS():
            self.data[name] = self.root["data"].create_array(name, shape=shape, chunks=chunks, dtype=dtype)

    def clear(self) -> None:
        """Remove the arrays of `data`."""
        for name in [*self.data]:
            del self.root["data"][name], self.data[name]


class DurableStore(LocalStore):
    """Syncs each file before it replaces an older one; the writer syncs the folders.

    A chunk also holds rows of earlier episodes. If its name were on the disk before its content, a power cut
    would lose those rows too.
    """

    async def set(self, key: str, value: Any) -> None:
        await asyncio.to_thread(self._replace, self.root / key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    def _replace(self, path: Path, value: Any) -> None:
        make_folder(path.parent)
        replace_file(path, value.as_buffer_like())


def open_store(path: Path, mode: Literal["r", "r+"] = "r", durable: bool = False) -> Store:
    """Open the zarr group at a path.

    Args:
        path: folder of the group.
        mode: read only, or read and write.
        durable: whether to sync files, see `DurableStore`.

    Raises:
        ValueError: if there is no such group, it is damaged, or has an array of an unsupported form.
    """
    if not all((path / name / ".zgroup").is_file() for name in ("", *_GROUPS)):
        raise ValueError(how_to_convert(path))
    try:
        # Format 2 and not consolidated: zarr must read only the descriptions that are checked here.
        store = DurableStore(path) if durable else LocalStore(path, read_only=mode == "r")
        root = zarr.open_group(store, mode=mode, zarr_format=2, use_consolidated=False)
        attributes = dict(root["meta"].attrs)
    except (OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"dataset {path} is damaged: {error}; copy or collect it again") from error
    # `meta` first: a concurrent writer writes `meta/episode_ends` last, after the data of those episodes.
    with _WHOLE_CHUNKS():
        meta, data = (_open_arrays(store, group, mode) for group in _GROUPS)
    return Store(root, data, meta, attributes)


def _open_arrays(store: Any, group: str, mode: str) -> dict[str, Any]:
    names = sorted(file.parent.name for file in store.root.glob(f"{group}/*/.zarray"))
    return {name: _open_array(store, f"{group}/{name}", mode) for name in names}


def _open_array(store: Any, name: str, mode: str) -> Any:
    _check_description(store.root, name)
    try:
        return zarr.open_array(store, path=name, mode=mode, zarr_format=2)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"dataset {store.root} is damaged: {name} is no array ({error}); copy or collect it again"
        ) from error


def chunk_file(array: Any, number: int) -> Path:
    """File of a chunk of an array, counted along its rows."""
    key = array.metadata.encode_chunk_key((number, *[0] * (array.ndim - 1)))
    return Path(array.store.root / array.path / key)


def decoded(array: Any, rows: slice) -> NDArray[Any]:
    """Read the rows from `start` (default 0) to `stop` of an array of a dataset.

    Raises:
        ValueError: if one of their chunks is damaged; names dataset and array.
    """
    try:
        if getattr(array.metadata.compressor, "codec_id", "") == "blosc":
            size = array.chunks[0]
            for number in range((rows.start or 0) // size, -(-min(rows.stop, array.shape[0]) // size)):
                _check_size(chunk_file(array, number))
        return np.asarray(array[rows])
    except _UNDECODABLE as error:
        raise ValueError(
            f"dataset {array.store.root} is damaged: {array.path} cannot be decoded ({error}); "
            "copy or collect it again"
        ) from error


def _check_size(chunk: Path) -> None:
    """Raises ValueError if a chunk of blosc is cut off, which blosc would not notice."""
    with chunk.open("rb") as file:
        # Its header ends with the size of the chunk.
        if int.from_bytes(file.read(16)[12:], "little") != os.fstat(file.fileno()).st_size:
            raise ValueError(f"{chunk.name} is cut off")


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Check that a dataset can store arrays of this dtype.

    Raises:
        ValueError: if it is not bool, integer or float.
    """
    if dtype.kind not in KINDS:
        raise ValueError(f"{name} is of type {dtype}: a dataset holds bool, integers and floats")


def _check_description(path: Path, name: str) -> None:
    try:
        found = msgspec.json.decode((path / name / ".zarray").read_bytes(), type=_Description)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"dataset {path} is refused: {name} is no array of plain numbers that is compressed by blosc, "
            f"zstd, lz4, gzip, zlib or not at all ({error}); others may run code when they are read"
        ) from error
    if (size := math.prod(found.chunks) * int(found.dtype[2:])) > _LARGEST_CHUNK:
        raise ValueError(
            f"dataset {path} is refused: a chunk of {name} has {size} bytes, and {_LARGEST_CHUNK} are the "
            "most that are read; write it again with other chunks"
        )
    if (rows := found.shape[0]) > _MOST_ROOM:
        there = sum(1 for _ in (path / name).iterdir()) * found.chunks[0]
        if rows > there + _MOST_ROOM:
            raise ValueError(
                f"dataset {path} is torn: {name} says that it has {rows} rows, and its files hold {there} at "
                "most; copy or collect it again"
            )
    if len(found.chunks) != len(found.shape) or any(
        chunk < size for chunk, size in zip(found.chunks[1:], found.shape[1:], strict=True)
    ):
        raise ValueError(
            f"dataset {path} is refused: the chunks of {name} are {found.chunks} of {found.shape}, "
            "and have to hold whole steps; write it again with other chunks"
        )
