"""The smallest worlds to their last state, and each broken product found: `verification.interleavings`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verification.interleavings.__main__ import main
from verification.interleavings.mutations import MUTATIONS, made
from verification.interleavings.search import search

#: Worlds whose smallest form takes a second or two, and the states that it has at least.
QUICK = {
    **{"lanes": 300, "crossing": 300, "once": 800, "blame": 100, "handed": 20, "schedules": 1500},
    **{"dead": 700, "effects": 1500, "relays": 3500, "redriven": 700, "dropped": 400},
    **{"abandoned": 250, "steps": 1400, "signals": 2000, "gathers": 1500, "rest": 2000},
}
#: A mutation of each world: the first one.
_BY_DAY = {mutation.world: name for name, mutation in reversed(MUTATIONS.items())}.values()
#: Only a bound for the case that a search never ends.
MAX_S = 100.0


@pytest.mark.bad_input("time or host: clock back an hour within a pass")
@pytest.mark.parametrize("world", QUICK)
@pytest.mark.slow
def test_every_promise_holds_in_every_state_of_a_small_world(world: str) -> None:
    """Whatever order calls, lost replies, late ghosts, expiries and crashes come in."""
    match = search((made, (world, True, "")), most_s=MAX_S)
    assert match.breach is None
    assert match.complete
    assert match.states >= QUICK[world]


@pytest.mark.parametrize(
    "mutation",
    [
        name
        if name in _BY_DAY
        else pytest.param(name, marks=pytest.mark.nightly("test_a_broken_product_is_found"))
        for name in MUTATIONS
    ],
)
@pytest.mark.slow
def test_a_broken_product_is_found(mutation: str) -> None:
    """The search sees each of these changes, and tells a way that leads to the damage."""
    match = search((made, (MUTATIONS[mutation].world, True, mutation)), most_s=MAX_S)
    assert match.breach is not None
    assert match.breach.steps


def test_a_breach_is_reported_with_a_shortest_path() -> None:
    """A send whose reply was lost and that is repeated without its number: two calls."""
    match = search((made, ("lanes", True, "send-unnumbered")), most_s=MAX_S)
    assert match.breach is not None
    assert match.breach.problem == "a1 is in 2 places: ready, ready"
    first, second = match.breach.steps
    assert first.startswith("a: send a1 lane=a0 number=1 → Sent(ids=('a1',)")
    assert first.endswith("[carried out, reply lost]")
    assert second.startswith("a: send a1 lane=- number=1 → Sent(ids=('a1',)")


@pytest.mark.slow
def test_the_command_prints_the_states_and_writes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two processes it sees the same states as in one."""
    path = tmp_path / "found.json"
    assert main(["--worlds", "crossing", "--small", "--json", str(path)]) == 0
    document = json.loads(path.read_text("utf-8"))
    alone = search((made, ("crossing", True, "")), most_s=MAX_S)
    assert document["states"] == alone.states
    assert document["transitions"] == alone.transitions
    assert document["violations"] == 0
    assert f"{alone.states:,} distinct states" in capsys.readouterr().out
