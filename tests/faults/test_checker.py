"""The checker finds what it is there to find: each kind of damage, planted into a history that is clean without it."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qworker.engine.scripts import load_script
from tests.tables import each
from verification.faults.__main__ import main
from verification.faults.accounts import Agreement, agreement_of
from verification.faults.checker import Account, account_of
from verification.faults.composition import figures_of
from verification.faults.flow import figures_of as figures_of_groups
from verification.faults.history import Event, History, events_of
from verification.faults.hooks import key_of
from verification.faults.mutations import MUTATIONS, mutated
from verification.faults.page import write
from verification.faults.playing import Played, _forgive
from verification.faults.report import report_of
from verification.faults.row import Row, at_least, at_most, exactly, within
from verification.faults.rows import ROWS, chosen
from verification.faults.soak import slope_of

SECOND = 1_000_000_000


def history(*lines: str) -> list[Event]:
    """Read lines `<seconds> <pid> <word> …`."""
    violations = []
    for line in lines:
        at, pid, word, *rest = line.split()
        violations.append(Event(int(float(at) * SECOND), int(pid), word, tuple(rest)))
    return violations


CLEAN = history(
    "1 7 sending p0 1 2",
    "2 7 sent p0 1 2",
    "3 8 started p0-1 1",
    "4 8 done p0-1",
    "5 8 started p0-2 1",
    "6 8 done p0-2",
    "7 8 acked p0-1 p0-2",
)


def check(*extra: str, without: str = "", **given: Any) -> Account:
    """Check the clean history with some lines more, and without those of a word."""
    events = [event for event in CLEAN if event.word != without] + history(*extra)
    return account_of(lambda: events, **given)


def test_a_clean_history_has_no_damage() -> None:
    """Two messages, each sent, started, done and acked once."""
    assert check() == Account(attempts=2, acked=2, handled=2, finished=2, latest_receives=1)


def test_a_message_that_was_never_handled_is_lost() -> None:
    """Confirmed, and then nothing of it."""
    account = check("8 7 sending p0 3 3", "9 7 sent p0 3 3")
    assert (account.lost, account.examples) == (1, {"lost": ["p0-3"]})


def test_a_lease_that_is_given_back_under_a_handler_is_no_counted_delivery() -> None:
    """A lease that runs out counts: the receive count rises. Files of processes are read in any order."""
    assert check("8 9 started p0-1 2", "9 9 started p0-1 3").uncounted == 0
    assert check("8 9 started p0-1 1", "9 9 started p0-2 2", "2 7 started p0-2 2").uncounted == 2


def test_a_message_that_was_only_begun_is_lost() -> None:
    """A worker that died in the middle has handled nothing: another worker has to."""
    assert check("8 7 sending p0 3 3", "9 7 sent p0 3 3", "10 8 started p0-3 1").lost == 1


def test_a_dead_letter_is_not_lost() -> None:
    """It is there to be looked at."""
    assert check("8 7 sending p0 3 3", "9 7 sent p0 3 3", dead={"p0-3"}).lost == 0


def test_a_send_in_doubt_may_be_gone_or_come() -> None:
    """Neither is damage; that it came is counted."""
    assert check("8 7 sending p0 3 3").lost == 0
    account = check("8 7 sending p0 3 3", "9 8 started p0-3 1", "9 8 done p0-3")
    assert (account.unexpected, account.recovered) == (0, 1)


def test_a_message_that_was_never_sent_is_unexpected() -> None:
    """Made up, or a number beyond those sent."""
    assert check("8 8 started p0-3 1").unexpected == 1
    assert check("8 8 started p9-1 1").unexpected == 1


def test_what_was_refused_is_unexpected() -> None:
    """A refusal is definite: nothing was stored."""
    account = check("8 7 sending p0 3 3", "9 7 refused p0 3 3", "10 8 started p0-3 1")
    assert account.unexpected == 1


def test_two_acks_of_one_message_are_found() -> None:
    """No matter which process confirmed them."""
    assert check("8 9 acked p0-2").acked_twice == 1


def test_an_ack_without_a_start_is_found() -> None:
    """A message that no handler ever began with must not be acked; one that ends its process has begun."""
    sent = ("8 7 sending p0 3 3", "9 7 sent p0 3 3")
    assert check(*sent, "10 8 acked p0-3").acked_unstarted == 1
    assert check(*sent, "10 8 poisoned p0-3 exit 1", "11 8 acked p0-3").acked_unstarted == 0


def test_a_dead_letter_is_not_finished() -> None:
    """Its last try may have come to the end, too late to be acked."""
    assert (check().finished, check(dead={"p0-2"}).finished) == (2, 1)


def test_a_call_that_was_handled_may_be_cancelled_before_its_ack() -> None:
    """Its send is not confirmed for it alone; one that has to run is never in doubt, and an ack ends the doubt."""
    ended = ("8 7 sending p0 3 3", "9 8 started p0-3 1", "10 8 done p0-3")
    account = check(*ended)
    assert (account.finished, account.maybe_cancelled) == (3, 1)
    assert check(*ended, "11 8 acked p0-3").maybe_cancelled == 0
    assert check(*ended, dead={"p0-3"}).maybe_cancelled == 0
    assert check(without="acked").maybe_cancelled == 0


def test_a_start_after_the_ack_is_found() -> None:
    """Also if the files of the two processes are read in the other order."""
    account = check("8 9 started p0-2 2", "9 9 done p0-2")
    assert (account.started_after_ack, account.duplicates, account.latest_receives) == (1, 1, 2)
    assert check("5.5 9 started p0-2 2").started_after_ack == 0


def test_only_the_first_start_after_a_thaw_may_have_had_its_check_before() -> None:
    """Frozen between the check of its lease and its note, a process starts what another one has handled meanwhile."""
    frozen = ("7.5 7 thawed 8 9", "8 9 started p0-2 2")
    once = check(*frozen)
    assert (once.started_after_ack, once.unexplained, once.duplicates) == (0, 0, 1)
    again = check(*frozen, "9 9 started p0-1 2")
    assert (again.started_after_ack, again.unexplained) == (1, 1)
    other = check(*frozen, "9 6 started p0-1 2")
    assert (other.started_after_ack, other.unexplained) == (1, 1)
    before = check("7.5 9 started p0-2 2", "8 7 thawed 9")
    assert (before.started_after_ack, before.unexplained) == (1, 1)


def test_a_second_start_is_explained_by_the_loss_of_the_first() -> None:
    """Its wait counts from the loss; without a loss it is unexplained."""
    lost = check("6.5 9 started p0-2 2", without="acked", losses={8: [5 * SECOND]})
    assert (lost.unexplained, lost.redelivery_s) == (0, [1.5])
    assert check("6.5 9 started p0-2 2", without="acked").unexplained == 1
    crashed = check("5.5 8 crashed 8", "6.5 9 started p0-2 2", without="acked")
    assert crashed.redelivery_s == [1.0]
    twice = check("6.5 9 started p0-2 2", without="acked", losses={8: [5 * SECOND, 9 * SECOND]})
    assert (twice.unexplained, twice.redelivery_s) == (0, [1.5])


def test_the_wait_between_gaps_is_what_lies_within_none_of_them() -> None:
    """Gaps that overlap count once, and only as far as they meet the wait."""
    account = check("16 9 started p0-2 2", without="acked", losses={8: [5 * SECOND]})
    assert account.redelivery_s == [11.0]
    gaps = [(9, 12), (1, 6), (2, 3), (7, 10), (15, 20), (30, 40)]
    assert account.waits_s([(a * SECOND, b * SECOND) for a, b in gaps]) == [4.0]
    assert account.waits_s([(0, 30 * SECOND)]) == [0.0]


@pytest.mark.parametrize("seed", range(5))
def test_planted_damage_is_found_in_a_large_history(seed: int) -> None:
    """Random runs of thousands of messages: exactly what was planted is found."""
    chance = random.Random(seed)
    events, number = [], 1000
    for first in range(1, number, 50):
        events += history(
            f"{first} 1 sending p {first} {first + 49}", f"{first} 1 sent p {first} {first + 49}"
        )
    keys = [f"p-{n}" for n in range(1, number + 1)]
    victims = chance.sample(keys, 40)
    lost, twice, late, alien = (set(victims[at : at + 10]) for at in range(0, 40, 10))
    for key in keys:
        pid = chance.randrange(2, 9)
        events += history(f"9000 {pid} started {key} 1")
        if key not in lost:
            events += history(f"9001 {pid} done {key}", f"9002 {pid} acked {key}")
        if key in twice:
            events += history(f"9003 {pid + 1} acked {key}")
        if key in late:
            events += history(f"9004 {pid + 1} started {key} 2")
        if key in alien:
            events += history(f"9000 {pid} started q-{key} 1")
    chance.shuffle(events)
    # A producer notes its own sends in order, whatever the files of others hold.
    events.sort(key=lambda event: event.at if event.word in ("sending", "sent") else number)
    account = account_of(lambda: events)
    assert account.acked == number
    violations = (account.lost, account.acked_twice, account.started_after_ack, account.unexpected)
    assert violations == (10, 10, 10, 10)
    assert set(account.examples["lost"]) == lost


class TestHistory:
    def test_what_is_noted_is_read_again(self, tmp_path: Path) -> None:
        """With its process, in its order, and without a line that is still on its way."""
        history = History(str(tmp_path))
        history.note("sending", "p0", 1, 20)
        history.note("sent", "p0", 1, 20, synced=True)
        (path,) = tmp_path.iterdir()
        with path.open("a") as file:
            file.write("17 sta")
        events = list(events_of(tmp_path))
        assert [(e.pid, e.word, e.rest) for e in events] == [
            (os.getpid(), "sending", ("p0", "1", "20")),
            (os.getpid(), "sent", ("p0", "1", "20")),
        ]
        assert events[0].at < events[1].at

    def test_the_key_of_a_message_is_its_first_argument(self) -> None:
        """As the producers write their calls."""
        assert key_of(b'q1 x 1 0 0 0 0\n{"task":"handle","args":["p0-17",5]}') == "p0-17"
        assert key_of(b"foreign") == "?"


class TestBounds:
    def test_hold_or_do_not(self) -> None:
        """Against a number or another figure; what was not measured does not hold."""
        figures = {"duplicates": 3.0, "running": 3.0, "wait_s": 4.0}
        assert at_most("duplicates", "running").holds(figures)
        assert not at_most("duplicates", 2).holds(figures)
        assert not at_most("duplicates", "kills").holds(figures)
        assert at_least("duplicates", 3).holds(figures)
        assert not exactly("duplicates", 2).holds(figures)
        assert not at_most("unknown", 2).holds(figures)

    def test_patience_stretches_times_alone(self) -> None:
        """A busy machine is slow; it loses nothing."""
        figures = {"wait_s": 4.0, "duplicates": 4.0}
        assert not within("wait_s", 2).holds(figures)
        assert within("wait_s", 2).holds(figures, patience=2)
        assert not at_most("duplicates", 2).holds(figures, patience=2)


class TestMutations:
    @pytest.mark.parametrize("name", MUTATIONS)
    def test_its_text_is_in_the_scripts(self, name: str) -> None:
        """A mutation that changes nothing is caught by nothing."""
        mutation = MUTATIONS[name]
        assert mutation.texts or mutation.patch
        assert set(mutation.rows) <= set(ROWS)
        for script in {script for script, _, _ in mutation.texts}:
            source = load_script(script).source
            assert mutated(mutation, script, source) != source

    def test_a_text_that_is_gone_is_an_error(self) -> None:
        """A change of a script fails here."""
        with pytest.raises(LookupError):
            mutated(MUTATIONS["reap-forgets-suspects"], "reap", b"return 1")


class TestRows:
    def test_are_named_once_and_in_order(self) -> None:
        """And a choice of them is what was asked for."""
        assert [row.name for row in chosen("F7,F1")] == ["F7", "F1"]
        kinds = [row for kind in ("all", "composition", "flow", "keys") for row in chosen(kind)]
        assert kinds == [*ROWS.values()]
        assert {"F1", "F5", "F6", "F7", "F9", "F11", "F15", "F17", "F25", "F33"} <= {
            row.name for row in chosen("commit")
        }
        with pytest.raises(LookupError):
            chosen("F1,F1000")

    def test_an_unknown_one_is_refused_in_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Before any server is started."""
        monkeypatch.setattr("sys.argv", ["faults", "--faults", "F1,F1000"])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert "--faults: no row is named 'F1000'; --list shows them" in capsys.readouterr().err

    @each("row", ROWS.values())
    def test_what_is_forgiven_is_bounded(self, row: Row) -> None:
        """Or the loss of everything would pass."""
        most = {bound.figure for bound in row.bounds if bound.sign == "≤"}
        assert not row.takes or "taken" in most
        assert not row.undoes or "undone" in most


class TestFlows:
    """Chains and runs, as `composition` judges their histories."""

    def _figures(self, directory: Path, *lines: str) -> Mapping[str, float]:
        text = "".join(f"{number} {line}\n" for number, line in enumerate(lines))
        (directory / "7-0.history").write_text(text)
        return figures_of(directory)

    def test_steps_that_ran_twice_with_one_message_and_one_value_are_sound(
        self, tmp_path: Path
    ) -> None:
        """Handlers run at least once."""
        lines = ["link p0/1-4 id1", "value p0/run-4 0 a", "ended p0/run-4", "ended p0/5-4"]
        lines += ["done p0/inner-4", "link p0/all-4 id2", "ended p0/all-4"]
        assert self._figures(tmp_path, *lines, *lines) == {
            "chains": 1,
            "groups": 1,
            "runs": 1,
            "gathers": 0,
            "races": 0,
            "rest_cancelled": 0,
            "nested": 1,
            "forked": 0,
            "misplaced": 0,
            "rewritten": 0,
        }

    def test_a_second_message_or_value_of_a_step_is_seen(self, tmp_path: Path) -> None:
        """A chain that continues twice, and a run that forgets what a step returned."""
        figures = self._figures(
            tmp_path,
            "link p0/2-4 id1",
            "link p0/2-4 id2",
            "value p0/run-4 3 a",
            "value p0/run-4 3 b",
            "value p0/run-4 2 a",
        )
        assert (figures["forked"], figures["rewritten"]) == (1, 1)

    def test_the_rest_of_a_race_that_began_is_not_cancelled(self, tmp_path: Path) -> None:
        """Of two races the late call of one ran."""
        lines = ["ended p0/won-4", "ended p0/won-5", "started p0/late-5 1", "started p0/late-6 1"]
        figures = self._figures(tmp_path, *lines)
        assert (figures["races"], figures["rest_cancelled"], figures["chains"]) == (2, 1, 0)

    def test_a_callback_that_was_sent_twice_or_with_other_values_is_seen(
        self, tmp_path: Path
    ) -> None:
        """Each is a damage of its own."""
        lines = ["link p0/all-4 id1", "link p0/all-4 id2", "misplaced p0/inner-4"]
        figures = self._figures(tmp_path, *lines)
        assert (figures["forked"], figures["misplaced"]) == (1, 1)


FIGURES = {
    "server_acked": 7.0,
    "finished": 7.0,
    "maybe_cancelled": 0.0,
    "handled_acked": 9.0,
    "stale_outcomes": 2.0,
    "logged_acked": 9.0,
    "stale_acks": 2.0,
}


class TestAccounts:
    def _agreement(self, *, unseen: dict[str, str] | None = None, **given: Any) -> Agreement:
        names = ("takes", "undoes", "mends", "miscounts", "unfinished")
        row_of = {name: given.pop(name) for name in names if name in given}
        row = Row(name="F1", fault="", course=lambda stage: None, **row_of)
        return agreement_of(row, {**FIGURES, **given}, unseen or {})

    def test_are_the_same_numbers_except_for_late_outcomes(self) -> None:
        """The server, handlers, metrics and the log."""
        assert self._agreement() == Agreement()

    def test_a_worker_knows_better_than_the_server_what_came_too_late(self) -> None:
        """It acked a lease as a whole, and for the server that was a lease without messages."""
        assert self._agreement(stale_acks=0.0) == Agreement()
        assert self._agreement(stale_acks=0.0, stale_outcomes=1.0).problems

    @pytest.mark.parametrize(
        ("figure", "value", "says"),
        [
            ("finished", 6.0, "the server has counted 7 acks, handlers ended with 6 messages"),
            ("handled_acked", 10.0, "handlers ended with 7 messages, metrics counted 10, of"),
            ("handled_acked", 6.0, "handlers ended with 7 messages, metrics counted 6, of"),
            ("logged_acked", 10.0, "handlers ended with 7 messages, log counted 10, of"),
            ("logged_acked", 8.0, "metrics have counted 9 acks, the log 8"),
        ],
    )
    def test_a_difference_is_a_problem(self, figure: str, value: float, says: str) -> None:
        """Each is compared."""
        assert any(
            problem.startswith(says) for problem in self._agreement(**{figure: value}).problems
        )

    def test_one_that_is_left_out_says_why(self) -> None:
        """And the others are compared anyway."""
        agreement = self._agreement(unseen={"log": "a child was killed"}, handled_acked=6.0)
        assert agreement.left_out == {"log": "a child was killed"}
        assert len(agreement.problems) == 1
        agreement = self._agreement(takes="a disk", server_acked=3.0, logged_acked=8.0)
        assert agreement.left_out == {"server": "the server has forgotten: a disk"}
        assert agreement.problems == ["metrics have counted 9 acks, the log 8"]
        agreement = self._agreement(miscounts="a daemon is killed", server_acked=3.0)
        assert agreement == Agreement({"server": "a daemon is killed"})
        agreement = self._agreement(
            mends=("counter",), unseen={"metrics": "gone"}, server_acked=1.0
        )
        assert agreement.left_out.keys() == {"server", "metrics"}
        assert agreement.problems == []
        agreement = self._agreement(takes="a disk", unseen={"log": "a child was killed"})
        assert agreement.left_out.keys() == {"server", "metrics", "log"}

    def test_messages_that_never_ended_are_counted_by_their_cause(self) -> None:
        """Acked before its start, it is not an ack in the metrics nor in the log."""
        hung = {"unfinished": "hung", "hung": 3.0, "server_acked": 10.0}
        assert self._agreement(**hung) == Agreement()
        assert self._agreement(**{**hung, "handled_acked": 12.0}).problems

    def test_calls_that_were_cancelled_before_their_ack_are_no_acks(self) -> None:
        """As many acks may be missing, and none may be too many."""
        assert self._agreement(maybe_cancelled=2.0, server_acked=5.0) == Agreement()
        assert self._agreement(maybe_cancelled=2.0, server_acked=4.0).problems
        assert self._agreement(maybe_cancelled=2.0, server_acked=8.0).problems
        uncounted = {"maybe_cancelled": 1.0, "stale_outcomes": 0.0, "stale_acks": 0.0}
        uncounted |= {"handled_acked": 6.0, "logged_acked": 6.0}
        assert self._agreement(**uncounted) == Agreement()
        assert self._agreement(**{**uncounted, "maybe_cancelled": 0.0}).problems

    def test_messages_of_schedules_are_expected(self) -> None:
        """No producer has sent them, and their handlers end like others."""
        account = check("8 7 scheduled m1", "9 7 scheduled m2")
        assert account.finished == check().finished + 2
        assert account.unexpected == 0


class TestWhatIsTaken:
    def _judged(self, account: Account, *, named: bool = False, **given: Any) -> Played:
        row = Row(name="F1", fault="", course=lambda stage: None, **given)
        played = Played(row, 7, account=account)
        _forgive(row, played, named=named)
        return played

    def test_is_forgiven_where_the_row_says_so(self) -> None:
        """Losses apart from acks, and both counted."""
        account = Account(lost=3, acked_twice=1, started_after_ack=2)
        assert self._judged(account).account == account
        played = self._judged(account, takes="a disk")
        assert played.account == Account(acked_twice=1, started_after_ack=2)
        assert played.figures == {"taken": 3}
        played = self._judged(account, undoes="a replica")
        assert (played.account, played.figures) == (Account(lost=3), {"undone": 2})

    def test_only_named_messages_count_as_taken(self) -> None:
        """Another message that is gone is lost."""
        account = check("8 7 sending p0 3 4", "9 7 sent p0 3 4", gone={"p0-3"})
        assert (account.lost, account.taken, account.examples) == (1, 1, {"lost": ["p0-4"]})
        played = self._judged(account, named=True, takes="a key")
        assert (played.account.lost, played.figures) == (1, {"taken": 1})


class TestWhatWasHeld:
    def test_waits_from_the_crash_to_the_next_start(self) -> None:
        """Whether it had begun or not."""
        account = check("5 8 held p0-3", "6 8 crashed 8", "8.5 9 started p0-3 2")
        assert account.held_s == [2.5]

    def test_what_was_acked_or_given_back_before_does_not_count(self) -> None:
        """It was nobody's who crashed."""
        assert check("2 8 held p0-1", "9 8 crashed 8").held_s == []
        returned = ("2 8 held p0-3", "3 9 held p0-3", "4 8 crashed 8", "5 9 started p0-3 1")
        assert check(*returned).held_s == []

    def test_the_next_holder_ends_the_wait_where_it_crashes_too(self) -> None:
        """Then there are two waits."""
        account = check(
            "5 8 held p0-3",
            "6 8 crashed 8",
            "8 9 held p0-3",
            "8.5 9 crashed 9",
            "11 7 held p0-3",
            "11 7 started p0-3 3",
        )
        assert account.held_s == [2.0, 2.5]


def _played(**given: Any) -> Played:
    row = Row(
        name="F1",
        fault="a child is killed",
        course=lambda stage: None,
        bounds=(at_most("duplicates", 1), at_most("duplicates", "kills")),
    )
    return Played(row, 7, figures={"duplicates": 1.0, "kills": 4.0}, **given)


class TestReport:
    def test_a_row_that_was_not_played_has_not_passed(self) -> None:
        """It does not fail the run, but it is named."""
        report = report_of([_played(account=check()), _played(reason="no compiler")], 7, 1.0)
        assert [row["passed"] for row in report["rows"]] == [True, False]
        assert (report["passed"], report["not_played"], report["acked"]) == (True, ["F1"], 2)

    def test_a_problem_fails_the_run(self) -> None:
        """Whatever it is."""
        assert not report_of([_played(problems=["1 lost"])], 7, 1.0)["passed"]
        assert not report_of([], 7, 1.0)["passed"]

    def test_the_page_has_its_tables_between_marks(self) -> None:
        """And what stands around them stays."""
        page = "a\n<!-- losses -->\nold\n<!-- end of losses -->\nb\n<!-- faults -->\n<!-- end of faults -->\nc\n"
        written = write(page, report_of([_played(account=check())], 7, 60.0))
        measured = "duplicates ≤ 1: 1; duplicates ≤ kills (4): 1"
        assert f"| F1 | a child is killed | 2 | 0 | {measured} | passed |" in written
        assert "old" not in written
        assert written.startswith("a\n")
        assert written.endswith("c\n")
        with pytest.raises(ValueError, match="marks"):
            write("nothing", report_of([_played()], 7, 60.0))

    def test_a_soak_has_its_own_table(self) -> None:
        """One of faults is left as it is where there is no run of them."""
        row = {
            "process": "daemon",
            "mean_mb": 40.0,
            "slope_kb_per_min": 1.5,
            "margin_kb_per_min": 2.0,
            "day_percent": 0.3,
            "verdict": "flat",
        }
        days = {"days_of_messages": 2.0, "days_of_ticks": 1.0}
        soaked = {"seed": 7, "seconds": 60.0, "messages": 2_000_000, "ticks": 86_400, "rows": [row]}
        page = "<!-- faults -->\nold\n<!-- end of faults -->\n<!-- soak -->\n<!-- end of soak -->\n"
        written = write(page, {**soaked, **days})
        assert "\nold\n" in written
        assert "2,000,000 messages and 86,400 passes" in written
        assert "| daemon | 40.0 MB | +1.5 ± 2.0 | 0.3 % | flat |" in written


class TestSlope:
    def test_noise_is_flat_and_a_leak_is_not(self) -> None:
        """10 KB/s on 50 MB for five minutes is 6 %."""
        chance = random.Random(1)
        noise = [(float(at), 50e6 + chance.uniform(-1e5, 1e5)) for at in range(300)]
        leak = [(at, size + 10_000 * at) for at, size in noise]
        assert slope_of(noise).verdict(300) == "flat"
        assert slope_of(leak).verdict(300) == "grows"
        assert slope_of(leak).per_s == pytest.approx(10_000, rel=0.1)
        assert slope_of([(float(at), 5.0) for at in range(10)]).verdict(10) == "flat"

    def test_too_uneven_samples_are_not_flat(self) -> None:
        """A wide interval holds zero, and a leak as well."""
        chance = random.Random(1)
        uneven = [(float(at), 50e6 + chance.uniform(-4e7, 4e7)) for at in range(30)]
        assert slope_of(uneven).verdict(300) == "unsure"

    def test_a_step_does_not_count_as_growth(self) -> None:
        """One megabyte once, of 50, in the middle of five minutes; a megabyte a minute is a leak."""
        once = [(float(at), 50e6 + 1e6 * (at > 150)) for at in range(300)]
        assert slope_of(once).verdict(300) == "flat"
        stairs = [(float(at), 50e6 + 1e6 * (at // 60)) for at in range(300)]
        assert slope_of(stairs).verdict(300) != "flat"


class TestGroups:
    """Groups and limits, as `flow` judges their histories."""

    def _figures(self, directory: Path, *lines: str) -> Mapping[str, float]:
        """Read lines `<pid> <word> …`, a second apart."""
        for pid in ("7", "8", "9"):
            told = enumerate(line.partition(" ") for line in lines)
            text = "".join(f"{at * SECOND} {words}\n" for at, (by, _, words) in told if by == pid)
            (directory / f"{pid}-0.history").write_text(text)
        return figures_of_groups(directory)

    def test_a_retry_in_its_place_keeps_the_order(self, tmp_path: Path) -> None:
        """A message that fails or whose worker dies begins again before the next one, also after its end."""
        figures = self._figures(
            tmp_path,
            "7 sent p0/ordered3 1 2",
            "8 started p0/ordered3-1 1",
            "8 failed p0/ordered3-1",
            "8 started p0/ordered3-1 2",
            "8 done p0/ordered3-1",
            "9 started p0/ordered3-1 3",
            "9 done p0/ordered3-1",
            "9 started p0/ordered3-2 1",
            "9 done p0/ordered3-2",
        )
        assert (figures["ordered_groups"], figures["disordered"]) == (1, 0)

    @pytest.mark.parametrize(
        "order", ["s1 s2 d1 d2", "s2 d2 s1 d1", "s1 d1 s2 s1 d1 d2", "s1 s1 s2 d2 d1"]
    )
    def test_a_start_out_of_order_is_seen(self, tmp_path: Path, order: str) -> None:
        """The next one beside it or before it, and a delivery again after the next one has begun."""
        words = {"s": "started", "d": "done"}
        lines = [f"8 {words[each[0]]} p0/ordered3-{each[1]} 1" for each in order.split()]
        figures = self._figures(tmp_path, "7 sent p0/ordered3 1 2", *lines)
        assert figures["disordered"] >= 1

    def test_a_message_whose_send_is_in_doubt_has_no_place_in_the_order(
        self, tmp_path: Path
    ) -> None:
        """It may be stored late, or never."""
        figures = self._figures(
            tmp_path,
            "7 doubt p0/ordered3 1 1",
            "7 sent p0/ordered3 2 2",
            "8 started p0/ordered3-2 1",
            "8 done p0/ordered3-2",
            "8 started p0/ordered3-1 1",
        )
        assert figures["disordered"] == 0

    def test_handlers_at_a_time_are_counted(self, tmp_path: Path) -> None:
        """One of a killed process counts until its last note."""
        figures = self._figures(
            tmp_path,
            "7 started p0/capped-1 1",
            "8 started p0/capped-2 1",
            "9 started p0/capped-3 1",
            "8 done p0/capped-2",
            "8 started p0/capped-4 1",
            "8 started p0/fair-1 1",
            "9 done p0/capped-3",
        )
        assert figures["at_once"] == 2

    def test_what_children_receive_of_a_rate_is_counted(self, tmp_path: Path) -> None:
        """Each delivery takes a token; the most within two seconds counts, however late a child notes some."""
        figures = self._figures(
            tmp_path,
            "8 held p0/rated-1 p0/rated-2 p0/fair-1",
            "8 delivered 1000 p0/rated-1 p0/rated-2 p0/fair-1",
            "9 delivered 2000 p0/rated-3",
            "8 delivered 4500 p0/rated-4",
            "9 delivered 1500 p0/rated-5",
        )
        assert figures["rated_most"] == 4
