"""Where an archive is: a directory that all hosts see, or an object store by URL.

    s3://BUCKET/PATH      (or s3a://) S3 and what speaks like it

`qworker.pipeline.jobs.s3_options` has the credentials of a store.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import total_ordering
from pathlib import Path
from typing import Any, Final, TypeAlias

from qworker.errors import InvalidOptionError, PipelineError
from qworker.pipeline.jobs.s3_options import S3Options

__all__ = [
    "AnyPath",
    "ObjectPath",
    "absent",
    "cannot_read",
    "cannot_write",
    "one_line",
    "open_read",
    "open_write",
    "path_of",
]

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
_S3: Final = re.compile(r"s3a?:/+", re.IGNORECASE)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}", re.IGNORECASE)
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_NESTED: Final = re.compile(r"\s*\n\s*(?:↳\s*)?")
#: From this number of files on, all of the archive are listed rather than each one asked for.
_LISTED: Final = 1000


@total_ordering
@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object of a store, or a prefix of objects, with a part of the interface of `Path`. `key`: BUCKET/PATH."""

    key: str
    options: S3Options = field(default=S3Options(), repr=False)

    @classmethod
    def of(cls, url: str) -> ObjectPath:
        """Read a URL, and the options from the environment. Raises `InvalidOptionError`."""
        key = _S3.sub("", url).strip("/")
        bucket, _, path = key.partition("/")
        if not _BUCKET.fullmatch(bucket) or not path or "//" in path:
            raise InvalidOptionError(
                "archive", f"{url!r} does not name a path in a bucket", "write s3://BUCKET/PATH"
            )
        return cls(key, S3Options.of_environment())

    def __str__(self) -> str:
        return f"s3://{self.key}"

    def __lt__(self, other: object) -> bool:
        return self.key < other.key if isinstance(other, ObjectPath) else NotImplemented

    def __truediv__(self, more: str) -> ObjectPath:
        return ObjectPath(f"{self.key}/{more}", self.options)

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """All but the last part."""
        return ObjectPath(self.key.rpartition("/")[0], self.options)

    def relative_to(self, root: ObjectPath) -> str:
        """The part after `root`."""
        assert self.key.startswith(f"{root.key}/")
        return self.key[len(root.key) + 1 :]

    def exists(self) -> bool:
        """Whether there is such an object, or any under it."""
        return not absent([self])

    def is_dir(self) -> bool:
        """Whether there are objects under it."""
        from pyarrow.fs import FileType

        return bool(self._fs().get_file_info(self.key).type == FileType.Directory)

    def mtime(self) -> float:
        """When it was written, as `time.time()`."""
        moment = self._fs().get_file_info(self.key).mtime
        return time.time() if moment is None else float(moment.timestamp())

    def read_bytes(self) -> bytes:
        """Read it whole. Raises `FileNotFoundError`."""
        with self._fs().open_input_stream(self.key) as stream:
            return bytes(stream.read())

    def read_text(self) -> str:
        """Read it whole, as UTF-8. Raises `FileNotFoundError`."""
        return self.read_bytes().decode()

    def write_text(self, text: str) -> None:
        """Write or replace it, whole or not at all."""
        with self.open_write() as stream:
            stream.write(text.encode())

    def open_write(self) -> Any:
        """Open a stream that writes it; it is there when the stream is closed."""
        return self._fs().open_output_stream(self.key)

    def open_read(self) -> Any:
        """Open it for reading at any place."""
        return self._fs().open_input_file(self.key)

    def under(self) -> Iterator[ObjectPath]:
        """List the objects under it."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self.key, allow_not_found=True, recursive=True)
        for info in self._fs().get_file_info(selector):
            if info.type == FileType.File:
                yield ObjectPath(info.path, self.options)

    def unlink(self) -> None:
        """Delete it. Raises `FileNotFoundError`."""
        self._fs().delete_file(self.key)

    def remove(self) -> None:
        """Delete all that is under it."""
        if self.is_dir():
            self._fs().delete_dir(self.key)

    def _fs(self) -> Any:
        return self.options.filesystem()


AnyPath: TypeAlias = Path | ObjectPath


def path_of(root: Path | str | ObjectPath) -> AnyPath:
    """Read where an archive is. Raises `InvalidOptionError` for another kind of URL, and for a file."""
    if isinstance(root, ObjectPath):
        return root
    text = str(root)
    # Path() replaces two slashes by one.
    if _S3.match(text):
        return ObjectPath.of(text)
    if _URL.match(text):
        raise InvalidOptionError(
            "archive",
            f"{text!r} is not an s3:// URL",
            "name s3://BUCKET/PATH, or a directory; mount other storage where driver and executors see it",
        )
    path = Path(root).absolute()
    if path.exists() and not path.is_dir():
        raise InvalidOptionError("archive", f"{text!r} is a file", "name a directory")
    return path


def open_write(path: AnyPath) -> Any:
    """Open a stream of pyarrow that writes a file."""
    import pyarrow as pa

    return pa.OSFile(str(path), "wb") if isinstance(path, Path) else path.open_write()


def open_read(path: AnyPath) -> Any:
    """Open a file of pyarrow that is read at any place."""
    import pyarrow as pa

    return pa.OSFile(str(path), "rb") if isinstance(path, Path) else path.open_read()


def absent(files: Sequence[AnyPath]) -> set[AnyPath]:
    """Find the files that are not there."""
    stored = [file for file in files if isinstance(file, ObjectPath)]
    gone: set[AnyPath] = {file for file in files if isinstance(file, Path) and not file.exists()}
    if not stored:
        return gone
    if len(stored) > _LISTED:
        # One request for a thousand names.
        roots = {ObjectPath(file.key.partition("/queue=")[0], file.options) for file in stored}
        there = {file.key for root in roots for file in root.under()}
        return gone | {file for file in stored if file.key not in there}
    from pyarrow.fs import FileType

    infos = stored[0].options.filesystem().get_file_info([file.key for file in stored])
    none = FileType.NotFound
    return gone | {file for file, info in zip(stored, infos, strict=True) if info.type == none}


def one_line(error: BaseException) -> str:
    """The text of an error of a store or of `deltalake`, which nest causes over lines and colour them."""
    text = _NESTED.sub(": ", _ANSI.sub("", str(error)).strip())
    text = re.sub(r"(:\s*){2,}", ": ", re.sub(r"\s+", " ", text)).strip(" .:")
    return text if len(text) <= 600 else f"{text[:600]}…"


def cannot_read(root: AnyPath, error: BaseException) -> PipelineError:
    """The error of an archive that cannot be read."""
    return PipelineError(f"the archive {root} cannot be read ({one_line(error)}): {_checks(root)}")


def cannot_write(root: AnyPath, error: BaseException, effect: str) -> PipelineError:
    """The error of an archive that cannot be written. `effect`: the state that it left."""
    return PipelineError(
        f"the archive {root} cannot be written ({one_line(error)}); {effect}: {_checks(root)}, then run it again"
    )


def _checks(root: AnyPath) -> str:
    if isinstance(root, Path):
        return "check the rights and the space on its disk"
    return "check its bucket and space, AWS_ENDPOINT_URL, AWS_REGION, the keys and their rights"
