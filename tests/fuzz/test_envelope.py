"""Python and Lua read an envelope alike, whatever it is: what one calls ours the other never calls foreign."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import strategies as st

from qworker.store.connections import ConnectionFactory
from qworker.wire.envelope import Envelope, kind_of
from qworker.wire.numbers import whole
from tests.fuzz.envelopes import items
from tests.fuzz.exploring import explore

LETTERS = "cdefgmpstuvwx"
#: What the scripts know of an item, as one row of the reply.
ASKING = """
local rows = {}
for i = 1, #ARGV do
  local item = ARGV[i]
  local what = kind(item)
  local message = what == 'own' and parse(item)
  if what == 'own' and not message then what = 'foreign' end
  local row = { what }
  if message then
    local back = assemble(message)
    row[2] = { message.id, message.sent, text(message.receives), text(message.nacks), text(message.timeouts),
      text(message.shared), text(level(item)), back }
    local head = header(item)
    for letter in string.gmatch('LETTERS', '.') do
      local mark = ' ' .. letter .. '='
      local number = number_in(head, mark)
      row[#row + 1] = { flag(item, mark) or '', number and text(number) or '' }
    end
  end
  rows[i] = row
end
return rows
""".replace("LETTERS", LETTERS)


def script() -> str:
    """The pieces of the scripts that read envelopes, and a call of each."""
    lib = files("qworker").joinpath("lua", "lib")
    pieces = [
        lib.joinpath(name).read_text() for name in ("clock.lua", "checks.lua", "envelope.lua")
    ]
    return "\n".join([*pieces, ASKING])


@pytest.fixture(scope="module")
def asked(store_url: str) -> Iterator[Any]:
    """What Lua says of items."""
    client = ConnectionFactory(store_url).redis()
    yield client.register_script(script())
    client.close()


def python_says(item: bytes) -> list[Any]:
    """What Python knows of an item, in the shape of the reply."""
    row: list[Any] = [kind_of(item).value.encode()]
    envelope = Envelope.parse(item)
    if envelope is None:
        return row
    priority = whole(envelope.flags.get("p")) or 0
    counts = (envelope.receives, envelope.nacks, envelope.timeouts, envelope.shared)
    start = b"q1 %b %b %d %d %d %d" % (envelope.id.encode(), item.split(b" ")[2], *counts)
    row.append([envelope.id.encode(), item.split(b" ")[2], *(b"%d" % count for count in counts)])
    row[1] += [b"%d" % (priority if 1 <= priority <= 9 else 0), start + item[len(start_of(item)) :]]
    for letter in LETTERS:
        value = envelope.flags.get(letter, "")
        number = whole(value)
        row.append([value, "" if number is None else str(min(number, 2**53))])
    return row


def start_of(item: bytes) -> bytes:
    """A header up to its flags."""
    header = item.partition(b"\n")[0]
    return b" ".join(header.split(b" ")[:7])


def as_python(row: list[Any]) -> list[Any]:
    """The values of flags as Python has them: decoded."""
    if len(row) < 2:
        return row
    pairs = [
        [unquote_to_bytes(value).decode("utf-8", "replace"), number.decode()]
        for value, number in row[2:]
    ]
    return [*row[:2], *pairs]


@pytest.mark.bad_input("data found: foreign push")
@pytest.mark.slow
def test_python_and_lua_read_items_alike(asked: Any) -> None:
    """Kind, id, times, counters, flags and body; a repeated flag counts where it stands first."""

    def agree(some: list[bytes]) -> None:
        for item, row in zip(some, asked(args=some), strict=True):
            assert as_python(row) == python_says(item), item

    explore(agree, st.lists(items, min_size=1, max_size=30), examples=300)
