"""The log of an archive's commits, read as text: which files each added, and where it says to continue."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from qworker.pipeline.jobs.files import sync
from qworker.pipeline.jobs.store import AnyPath, cannot_read

__all__ = ["OFFSETS_KEY", "Log"]

#: In the metadata of a commit: where to continue in the journals.
OFFSETS_KEY: Final = "qworker.offsets"
#: The line of an added file in a commit, also of other programs.
_ADD: Final = re.compile(r'\{\s*"add"\s*:')


@dataclass(frozen=True, slots=True)
class Log:
    """The log of the archive at `root`."""

    root: AnyPath

    def exists(self) -> bool:
        """Whether there is one. Raises `PipelineError`."""
        log = self.root / "_delta_log"
        try:
            return log.is_dir()
        except OSError as error:
            raise cannot_read(self.root, error) from error

    def added(self, version: int) -> dict[AnyPath, int]:
        """List the files that a commit added with new rows, and their bytes. Raises `FileNotFoundError`."""
        lines = self._read(version).splitlines()
        adds = [json.loads(line)["add"] for line in lines if _ADD.match(line)]
        return {self.root / unquote(add["path"]): add["size"] for add in adds if add["dataChange"]}

    def offsets(self, newest: int) -> tuple[float, dict[str, Any] | None] | None:
        """Find the newest commit with offsets, up to this one: when it was written, and these. None: there is none."""
        for version in range(newest, -1, -1):
            try:
                text = self._read(version)
            except FileNotFoundError:
                return None
            for line in text.splitlines():
                if OFFSETS_KEY in line and (info := json.loads(line).get("commitInfo")):
                    document = json.loads(info[OFFSETS_KEY])
                    return self._written(version), document if isinstance(document, dict) else None
        return None

    def sync(self, first: int, last: int) -> None:
        """Flush commits to the disk; a store has them."""
        if isinstance(self.root, Path):
            for version in range(first, last + 1):
                sync(self.root / "_delta_log" / _name(version))
            sync(self.root / "_delta_log")

    def _file(self, version: int) -> AnyPath:
        return self.root / "_delta_log" / _name(version)

    def _read(self, version: int) -> str:
        """Read a commit. Raises `FileNotFoundError`, `PipelineError`."""
        file = self._file(version)
        try:
            return file.read_text(encoding="utf-8") if isinstance(file, Path) else file.read_text()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise cannot_read(self.root, error) from error

    def _written(self, version: int) -> float:
        file = self._file(version)
        return file.stat().st_mtime if isinstance(file, Path) else file.mtime()


def _name(version: int) -> str:
    return f"{version:020d}.json"
