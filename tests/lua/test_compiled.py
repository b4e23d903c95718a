"""How near the scripts are to what Lua 5.1 compiles at most."""

from __future__ import annotations

import pytest

from qworker.engine.scripts import SCRIPT_NAMES, load_script
from tests.lua.bytecode import Function, functions_of
from tests.tables import each

#: Lua's own limits are 200, 60 and 250. The rest is room for a change that has to add names before it takes some away.
MAX_LOCALS, MAX_UPVALUES, MAX_REGISTERS = 192, 45, 225


def compiled(source: bytes) -> list[Function]:
    """Compile what the server compiles, which leaves out the first line."""
    return functions_of(source.partition(b"\n")[2] if source.startswith(b"#!") else source)


@each("name", SCRIPT_NAMES)
@pytest.mark.slow
def test_scripts_keep_a_margin_to_the_limits_of_lua(name: str) -> None:
    """A name more in a shared part must not keep a script from compiling: move constants into their one function."""
    for function in compiled(load_script(name).source):
        assert function.locals <= MAX_LOCALS, f"{name}, line {function.line}: {function}"
        assert function.upvalues <= MAX_UPVALUES, f"{name}, line {function.line}: {function}"
        assert function.registers <= MAX_REGISTERS, f"{name}, line {function.line}: {function}"


def test_the_counts_are_those_of_lua() -> None:
    """A chunk with 200 names compiles, with one more it does not; names of a block that has ended do not count."""
    most = b"#!lua\n" + b"local x = 1\n" * 199 + b"do local y = x; print(y) end\n"
    (whole,) = compiled(most)
    assert whole.locals == 200
    with pytest.raises(Exception, match="200 local variables"):
        compiled(most + b"local z, zz = 1, 2\n")

    outer, inner = compiled(
        b"local a, b = 1, 2\nlocal function f(c) return a + b + c end\nreturn f\n"
    )
    assert (outer.locals, outer.upvalues) == (3, 0)
    assert (inner.line, inner.locals, inner.upvalues) == (2, 1, 2)
