"""Files whose tests are collected where they run: a process of pytest-xdist imports those that it runs, and no others.

Otherwise each process imports all files and makes all tests, which takes it as long as to run its share of the quick
ones. Here it collects an item per file, the same in all processes, and the file's own tests when its turn comes. The
reports are those of the tests. A file is run by one process; the larger ones begin.

A test that passes is told in one message between processes, not in five, whose cost is that of the shortest tests: its
start, its end, and that its fixtures came and went are left out, unless the run shows or writes them.

For runs of quick tests: `-m 'not slow'`, and what else is left out, by `and not …`. Other runs need to know each test
before the first, to choose some or to put them in order. A conftest takes in the two hooks.

No public hook lets a test stand for others: this uses that pytest-xdist reads `session.items` and that pytest finds the
ends of fixtures in `listchain`. With versions that have not been tried the run collects as usual.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from _pytest.nodes import Node

__all__ = ["TRIED", "LateFile", "collecting", "largest_first", "quick", "wanted"]

_LEFT_OUT: Final = "not slow"
#: The versions with which this was tried, by their beginnings.
TRIED: Final = {"pytest": ("9.1.",), "pytest-xdist": ("3.8.",)}

_WANTED: Final = pytest.StashKey[bool]()
#: Whether a test is told in one message.
_BRIEF: Final = pytest.StashKey[bool]()


def quick(config: pytest.Config) -> bool:
    """Whether a run leaves the slow tests out."""
    return _LEFT_OUT in config.option.markexpr.split(" and ")


def wanted(config: pytest.Config) -> bool:
    """Whether several processes collect late: a run that leaves tests out, and chooses none, in versions tried."""
    if _WANTED not in config.stash:  # asked for each file
        config.stash[_WANTED] = _wanted(config)
    return config.stash[_WANTED]


def _wanted(config: pytest.Config) -> bool:
    words = config.option.markexpr.split(" and ")
    return (
        quick(config)
        and all(word.startswith("not ") and " or " not in word for word in words)
        and not config.option.keyword
        and not any(".py" in argument for argument in config.args)
        and (hasattr(config, "workerinput") or bool(config.getoption("tx", None)))
        and all(version(name).startswith(begins) for name, begins in TRIED.items())
    )


def brief(config: pytest.Config) -> bool:
    """Whether a run shows and writes nothing but how tests ended."""
    option = config.option
    return option.verbose <= 0 and option.durations is None and not getattr(option, "xmlpath", None)


@contextmanager
def collecting() -> Iterator[None]:
    """Collect no garbage meanwhile, and keep bytecode even if the environment forbids it.

    What a collection of tests makes stays until the end: to look through it again and again takes a third of its time.
    To rewrite the asserts of a file takes more than all else.
    """
    gc.disable()
    sys.dont_write_bytecode = False
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)


def largest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Order files, so that the last ones are short and all processes end at the same time; [] for other items."""
    files = [item for item in items if isinstance(item, LateFile)]
    return sorted(files, key=lambda file: -file.path.stat().st_size)


class LateFile(pytest.Item):
    """A file of tests, which stands for them until it runs."""

    @classmethod
    def of(cls, path: Path, parent: pytest.Collector) -> LateFile:
        """Stand for a file of a folder."""
        name = f"{parent.nodeid}/{path.name}"
        file: LateFile = cls.from_parent(parent, name=path.name, nodeid=name, path=path)
        return file

    def tests(self) -> list[pytest.Item]:
        """Collect the tests that the run does not leave out; what fails there is reported as for any collection."""
        module = pytest.Module.from_parent(self.parent, path=self.path)
        with collecting():
            items = list(self.session.genitems(module))
            self.config.hook.pytest_collection_modifyitems(
                session=self.session, config=self.config, items=items
            )
        return items

    def run_all(self, following: pytest.Item | None) -> None:
        """Run its tests; `following` is what this process runs afterwards, if that is known."""
        items, session, told_briefly = self.tests(), self.session, brief(self.config)
        place = session.items.index(self)
        for item, after in pairwise([*items, following]):
            session.items[place] = item  # whose reports pytest-xdist expects
            item.stash[_BRIEF] = told_briefly
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = self

    def listchain(self) -> list[Node]:
        """Keep nothing but the session for it: it may have no test whose end would tear its folder down."""
        return [self.session, self]

    def runtest(self) -> None:
        """Never called: `run_all` takes the place of the whole protocol."""
        raise NotImplementedError


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> LateFile | None:
    """Let a file of quick tests be imported where it runs."""
    if hasattr(parent.config, "workerinput") and wanted(parent.config):
        return LateFile.of(module_path, parent)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the tests of a file that was not imported yet, and report of those that pass nothing but this."""
    if isinstance(item, LateFile):
        item.run_all(nextitem)
        return True
    if item.stash.get(_BRIEF, False):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        passed = all(report.passed for report in reports)
        for report in reports:
            if report.when == "call" or not passed:
                item.ihook.pytest_runtest_logreport(report=report)
        return True
    return None
