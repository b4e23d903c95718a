"""What a benchmark came to, and how it is reported."""

from __future__ import annotations

import pytest

from benchmarks.figures import at_least, at_most, gave_up, lines, measured, ratio
from benchmarks.rounds import ContenderError, interleave
from benchmarks.spread import quantile


def test_a_figure_is_the_median_with_its_range() -> None:
    figure = measured("drain", "qworker", [30.0, 10.0, 20.0], "messages/s", at_least(15))
    assert figure.row() == {
        "name": "drain",
        "measure": "qworker",
        "value": 20.0,
        "unit": "messages/s",
        "lowest": 10.0,
        "highest": 30.0,
        "goal": "≥ 15",
        "met": True,
    }


def test_a_ratio_is_that_of_the_medians() -> None:
    figure = ratio("cost", "to the floor", [4.0, 6.0, 8.0], [2.0, 2.0, 2.0], at_most(2.5))
    assert (figure.value, figure.lowest, figure.highest, figure.met) == (3.0, 2.0, 4.0, False)


def test_a_figure_without_a_goal_neither_meets_nor_misses_it() -> None:
    figure = measured("send", "arq", [1.0], "messages/s")
    assert (figure.row()["goal"], figure.met) == (None, None)
    assert lines([figure.row()])[2] == "| send | arq | 1.0 | 1.0 – 1.0 | messages/s | – | – |"


def test_contenders_take_turns() -> None:
    turns = []

    def one() -> dict[str, float]:
        turns.append("one")
        return {"rate": len(turns)}

    def other() -> dict[str, float]:
        turns.append("other")
        return {"rate": len(turns)}

    samples = interleave({"one": one, "other": other}, 2, lambda line: None)
    assert turns == ["one", "other", "one", "other"]
    assert samples.of("one", "rate") == [1, 3]


def test_a_peer_that_does_not_work_is_named_and_left_out() -> None:
    def broken() -> dict[str, float]:
        raise ContenderError("it does not import")

    said: list[str] = []
    samples = interleave({"us": lambda: {"rate": 1.0}, "peer": broken}, 2, said.append)
    assert samples.having("rate") == ["us"]
    [row] = [figure.row() for figure in gave_up("drain", samples.gave_up)]
    assert (row["measure"], row["value"]) == ("peer gave up: it does not import", None)
    assert lines([row])[2] == "| drain | peer gave up: it does not import | – | – | – | – | – |"
    assert [line for line in said if "gives up" in line] == [
        "round 1/2  peer                         gives up: it does not import"
    ]


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (51, 100, 7)
    with pytest.raises(ValueError, match="nothing was measured"):
        quantile([], 0.5)
