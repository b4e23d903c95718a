"""Configuration: options > `QWORKER_<OPTION>` > configuration file > default.

    url = "redis://localhost"         options of the client and of logs are at the top of the file,
    [run]                             those of a command in its table
    concurrency = 8

The file is `qworker.toml` or `[tool.qworker]` of pyproject.toml in the current directory, or the one named with
`--config` or QWORKER_CONFIG. Errors and `qworker config show` name the source of a value: `--tick`, `QWORKER_TICK`,
`qworker.toml: daemon.tick`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from qworker.config.fields import Options, kinds_of, unknown_option, variable_of
from qworker.config.files import ConfigFile
from qworker.errors import InvalidOptionError

__all__ = ["Loaded", "Setting", "check_keys", "load"]

T = TypeVar("T", bound=Options)


class Setting(msgspec.Struct, frozen=True):
    """A value as `config show` prints it, without passwords, and its source."""

    value: str
    source: str


class Loaded(msgspec.Struct, Generic[T], frozen=True):
    """Options, and the setting of each field."""

    options: T
    settings: Mapping[str, Setting]


def load(
    options: type[T],
    *,
    given: Mapping[str, object],
    environ: Mapping[str, str],
    file: ConfigFile,
) -> Loaded[T]:
    """Load an options class from `given` values (None: not given), the environment, the file and the defaults.

    Parses given text and checks other given values. Raises `InvalidOptionError`, which names the source of a value that
    is not accepted.
    """
    table = _table(file, options.section)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, kind in kinds_of(options).items():
        flag, variable = f"--{name.replace('_', '-')}", variable_of(options, name)
        if (value := given.get(name)) is not None:
            values[name] = (
                kind.parse(value, flag) if isinstance(value, str) else kind.check(value, flag)
            )
            sources[name] = flag
        elif variable in environ:
            values[name] = kind.parse(environ[variable], variable)
            sources[name] = variable
        elif name in table:
            key = f"{options.section}.{name}" if options.section else name
            values[name] = kind.check(table[name], f"{file.name}: {key}")
            sources[name] = f"{file.name}: {key}"
    loaded = options(**values)
    settings = {
        name: Setting(kind.show(getattr(loaded, name)), sources.get(name, "default"))
        for name, kind in kinds_of(options).items()
    }
    return Loaded(loaded, MappingProxyType(settings))


def _table(file: ConfigFile, section: str) -> Mapping[str, object]:
    table = file.values.get(section, {}) if section else file.values
    if not isinstance(table, Mapping):
        raise InvalidOptionError(f"{file.name}: {section}", "is not a table", f"write [{section}]")
    return table


def check_keys(file: ConfigFile, classes: Iterable[type[Options]]) -> None:
    """Raise `InvalidOptionError` for a key of the file that no class of `classes` has."""
    known: dict[str, list[str]] = {}
    for options in classes:
        known.setdefault(options.section, []).extend(kinds_of(options))
    sections = [section for section in known if section]
    known[""] += sections
    for section, names in known.items():
        for name in _table(file, section):
            if name in names:
                continue
            key = f"{file.name}: {section}.{name}" if section else f"{file.name}: {name}"
            tables = [
                f"[{other}]" if other else "the top" for other in known if name in known[other]
            ]
            if tables:
                raise InvalidOptionError(
                    key, "is in the wrong table", f"move it to {' or '.join(tables)}"
                )
            raise unknown_option(ascii(key)[1:-1], name, names)
