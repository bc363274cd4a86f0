"""The zarr groups of datasets, opened in one place: a dataset may come from anybody.

Some of zarr's codecs run code that stands in the chunks (pickle), and arrays of objects need such codecs. So
the description of every array is checked before zarr sees it. Arrays hold plain numbers, their chunks are
compressed by one of a few known compressors and hold whole steps.
"""

import asyncio
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import zarr
from zarr.storage import LocalStore

from robot_rl.data.kinds import how_to_convert
from robot_rl.hardware.durable import make_folder, replace_file

_GROUPS: Final = ("meta", "data")
_KINDS: Final = "biuf"
_WHOLE_CHUNKS: Final = partial(zarr.config.set, {"array.write_empty_chunks": True})
"""Arrays that are opened or made meanwhile write chunks of nothing but zeros too."""
_LARGEST_CHUNK: Final = 1 << 30
_MOST_ROOM: Final = 10_000_000
"""Rows more than files hold: so much at most has a killed writer made room for."""
_Size = Annotated[int, msgspec.Meta(ge=0)]
_Chunk = Annotated[int, msgspec.Meta(ge=1)]


class _Compressor(msgspec.Struct):
    id: Literal["blosc", "zstd", "lz4", "gzip", "zlib"]


class _Description(msgspec.Struct):
    """What `.zarray` may say."""

    zarr_format: Literal[2]
    shape: Annotated[list[_Size], msgspec.Meta(min_length=1)]
    chunks: list[_Chunk]
    dtype: Annotated[str, msgspec.Meta(pattern=rf"^[<>|][{_KINDS}][0-9]+$")]
    compressor: _Compressor | None
    filters: None
    fill_value: bool | int | float | str | None


@dataclass(frozen=True)
class Store:
    """A dataset's arrays by name, what `meta` says of it, and the group of both."""

    root: Any
    data: dict[str, Any]
    meta: dict[str, Any]
    attributes: dict[str, Any]

    def add(self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Make an array of `data`."""
        with _WHOLE_CHUNKS():
            self.data[name] = self.root["data"].create_array(name, shape=shape, chunks=chunks, dtype=dtype)


class DurableStore(LocalStore):
    """Files that are on the disk before they replace others; their folders are the writer's to sync.

    A chunk holds rows of earlier episodes too: were its name there before its content, a power cut would take
    those with it.
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
        path: its folder.
        mode: to read, or to write too.
        durable: as `DurableStore`; else what is written is on the disk at some time.

    Raises:
        ValueError: it is none, or has an array that is not read here.
    """
    if not all((path / name / ".zgroup").is_file() for name in ("", *_GROUPS)):
        raise ValueError(how_to_convert(path))
    try:
        # Of format 2 and not consolidated: zarr reads those descriptions that were checked, and no others.
        store = DurableStore(path) if durable else LocalStore(path, read_only=mode == "r")
        root = zarr.open_group(store, mode=mode, zarr_format=2, use_consolidated=False)
        attributes = dict(root["meta"].attrs)
    except (OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"dataset {path} is damaged: {error}; copy or collect it again") from error
    # First `meta/episode_ends`, which a writer beside us writes last: what it ends is in all others then.
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


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Refuse an array that could not be read again.

    Raises:
        ValueError: it holds no plain numbers.
    """
    if dtype.kind not in _KINDS:
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
