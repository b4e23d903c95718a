"""What must hold of groups of calls, outboxes and runs.

Some promises are those of single calls. Others hold in every state: whatever a group waits for is there or on its way,
and so is whatever a run waits for; and of every call: an end is told if and only if a message has ended, and what a run
has recorded stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verification.interleavings.bench import Refused
from verification.interleavings.course import Course
from verification.interleavings.fixed import NOW
from verification.interleavings.flow_calls import entries_of, member_of
from verification.interleavings.promised_delivery import NO_COUNTS
from verification.interleavings.view import View

__all__ = ["abandon", "astray", "begin", "forward", "just", "signal", "step", "store", "untold"]


@dataclass
class Tally:
    """What a group of calls must be after each end of a member, by the words of `docs/guides/calls.md`."""

    policy: str
    size: int
    words: dict[str, str]
    dead: set[str]
    over: bool

    @classmethod
    def of(cls, join: dict[str, Any]) -> Tally:
        """Read one as it is stored."""
        words = {name: value for name, value in join.items() if name.isdigit()}
        dead = set(join.get("@dead", "").split())
        return cls(join["@policy"], int(join["@size"]), words, dead, "@over" in join)

    def count(self, member: str, words: str) -> None:
        """Count an end: the first one stays, but for that of a dead letter, which can be redriven or dropped."""
        known, was_dead = member in self.words, member in self.dead
        if self.over or int(member) >= self.size or (known and not was_dead):
            return
        if words == "":
            self.words.pop(member, None)
        elif not (was_dead and _is_final(words)):
            self.words[member] = words
        self.dead.discard(member)
        if words.startswith("dead "):
            self.dead.add(member)
        self.over = self.fires or self.fails

    @property
    def fires(self) -> bool:
        """Whether it is decided, and the callback follows."""
        good = sum(_is_good(words) for words in self.words.values())
        ended = len(self.words)
        return {"all": ended, "successes": good}.get(self.policy, good * self.size) >= self.size

    @property
    def fails(self) -> bool:
        """Whether it is decided, and no callback follows."""
        final = [name for name, words in self.words.items() if not _is_good(words)]
        final = [name for name in final if name not in self.dead]
        if self.policy == "successes":
            return bool(final)
        return self.policy == "first" and not self.fires and len(final) == self.size


def _is_good(words: str) -> bool:
    return words.startswith(("ok\n", "ok "))


def _is_final(words: str) -> bool:
    return not _is_good(words) and not words.startswith("dead ")


# -- single calls --------------------------------------------------------------------------------


def begin(course: Course) -> str | None:
    """A group begins once, and its members are on their way."""
    _, group, size, sends, policy, lease, *_ = course.call
    if lease and course.before.leases.get(lease, {}).get("0") != "r":
        return f"{group} was begun by {lease}, which does not hold r"
    new = [course.after.outbox[number] for number in _added(course)]
    if group in course.before.joins or group not in course.after.joins:
        return f"{len(new)} members were sent again" if new else None
    heads = [entry.get("head") for entry in new]
    if heads != [f"q1 {group}.{n} " for n in range(sends)]:
        return f"it sent {heads}"
    join = course.after.joins[group]
    begun = (join["@policy"], join["@size"], join["@left"], join["@sent"])
    return None if begun == (policy, str(size), str(size), str(sends)) else f"it began as {begun}"


def forward(course: Course) -> str | None:
    """Only what is said to be stored is forgotten, and the first entries are returned."""
    _, _, number = course.call
    gone = [each for each in course.before.outbox if each not in course.after.outbox]
    if too_many := [each for each in gone if each > int(number)]:
        return f"entries {too_many} were forgotten"
    read = [int(entry[1]) for entry in entries_of(course.result)]
    if read != sorted(course.after.outbox)[: len(read)]:
        return f"it returned {read} of {sorted(course.after.outbox)}"
    return None if read or not course.after.outbox else "it returned nothing"


def store(course: Course) -> str | None:
    """Each entry is stored once, and an end is counted once; what decides a group brings about what follows it."""
    _, lane, entries = course.call
    last = course.before.lanes.get(lane, 0)
    new = [entry for entry in entries if int(entry[1]) > last]
    stored = course.result if isinstance(course.result, int) else course.result.number
    if stored != max(last, int(entries[-1][1])) and stored != int(entries[-1][1]):
        return f"it says that {stored} is stored, of {[entry[1] for entry in entries]}"
    tallies: dict[str, Tally] = {}
    for entry in new:
        if entry[0] == "message":
            course.may(entry[2].split(" ")[1], ("ready", NO_COUNTS))
            continue
        _, _, group, member, words = entry
        if rest := _rest_of(group, words):
            if left := rest - course.after.cancelled.keys():
                return f"{', '.join(sorted(left))} should be cancelled"
            continue
        if group not in course.before.joins:
            continue
        if group not in tallies:
            tallies[group] = Tally.of(course.before.joins[group])
        tally, was_over = tallies[group], tallies[group].over
        tally.count(member, words)
        if tally.over and not was_over:
            _decide(course, group, tally)
            if wrong := _wrong_rest(course, group, tally):
                return wrong
    for group, tally in tallies.items():
        join = course.after.joins.get(group)
        if join is None:
            if not (tally.over and tally.fails):
                return f"{group} is gone"
        elif Tally.of(join) != tally:
            return f"{group} is {Tally.of(join)}, should be {tally}"
        elif int(join["@left"]) != _left(tally):
            return f"{group} waits for {join['@left']} of its members, should be {_left(tally)}"
    return None


def _decide(course: Course, group: str, tally: Tally) -> None:
    target = course.before.joins[group].get("@run")
    if target is None:
        if tally.fires:
            course.may(group, ("ready", NO_COUNTS))
        return
    _wake(course, target[0], target[1])


def _wake(course: Course, run: str, signal_: str) -> None:
    state = course.before.runs.get(run, {})
    locations = course.before.locations.get(run, [])
    if state.get("@waits") == signal_ and locations and locations[0].place == "delayed":
        course.may(run, ("ready", locations[0].counts))


def _wrong_rest(course: Course, group: str, tally: Tally) -> str | None:
    """With the first success the members are named that have not ended, if they are to be cancelled."""
    named = [
        _rest_of(group, entry["words"])
        for number in _added(course)
        if (entry := course.after.outbox[number]).get("join") == group
    ]
    open_ = {f"{group}.{n}" for n in range(tally.size) if str(n) not in tally.words}
    is_cancelled = "@rest" in course.before.joins[group] and tally.fires and open_
    should = [open_] if is_cancelled else []
    return None if named == should else f"it tells to cancel {named}, should be {should}"


def _rest_of(group: str, words: str) -> set[str]:
    """The messages that the rest of a group names; none for the end of a member."""
    word, *parts = words.split(" ")
    return {f"{group}.{part}" for part in parts} if word == "rest" else set()


def _left(tally: Tally) -> int:
    if tally.policy == "successes":
        return tally.size - sum(map(_is_good, tally.words.values()))
    return tally.size - len(tally.words)


def abandon(course: Course) -> str | None:
    """The group is gone."""
    group = course.call[1]
    return f"{group} is there" if group in course.after.joins else None


def step(course: Course) -> str | None:
    """A step has the value that it returned, and only the holder of the lease records one."""
    _, lease, message, name, _ = course.call
    if course.before.leases.get(lease, {}).get("0") != message:
        return f"{name} was recorded by {lease}, which does not hold {message}"
    recorded = course.after.runs.get(message, {}).get(name, "")
    value = course.result.decode()
    # A value that was recorded before comes back with its time.
    if recorded not in (f" t={NOW}{value}", value):
        return f"{name} is {recorded!r}, and the answer was {value!r}"
    return None


def signal(course: Course) -> str | None:
    """The first value stays, and a run that waits for it is woken."""
    _, message, name, value = course.call
    if name not in course.after.runs.get(message, {}):
        return f"{name} is not kept"
    before = course.before.runs.get(message, {}).get(name)
    if course.result.decode() not in (before or value, value if before is None else before):
        return f"it answers {course.result}, and {before or value} counts"
    _wake(course, message, name)
    return None


def _added(course: Course) -> list[int]:
    return sorted(course.after.outbox.keys() - course.before.outbox.keys())


# -- every call ----------------------------------------------------------------------------------


def untold(course: Course) -> str | None:
    """An end is told if and only if a message has ended, and in its words; steps and results stay as they were."""
    return _wrong_ends(course) or _changed_steps(course) or _changed_results(course)


def _wrong_ends(course: Course) -> str | None:
    told: dict[str, list[str]] = {}
    for number in _added(course):
        entry = course.after.outbox[number]
        if _rest_of(entry.get("join", ""), entry.get("words", "")):
            continue
        if "join" in entry:
            told.setdefault(f"{entry['join']}.{entry['member']}", []).append(entry["words"])
        elif course.call[0] != "begin":
            return f"it has sent {entry['head']}"
    values = _values(course)
    for name in sorted(course.before.locations.keys() | told.keys()):
        if member_of(name) is None:
            continue
        was, now = (queue.locations.get(name) for queue in (course.before, course.after))
        words = told.get(name, [])
        if not _fits(was[0].place if was else "", now[0].place if now else "", words):
            return f"{name} was {_place(was)}, is {_place(now)}, and its group is told {words}"
        if name in values and words and words != [values[name]]:
            return f"{name} has ended as {values[name]!r}, and its group is told {words}"
    return None


def _fits(was: str, now: str, words: list[str]) -> bool:
    """Whether a member that was here, and is there now, has told its group so."""
    if now == "dead" and was != "dead":
        return len(words) == 1 and words[0].startswith("dead ")
    if was == "dead" and now != "dead":
        return len(words) == 1 and (words[0] == "" if now else _is_final(words[0]))
    if was and not now:
        return len(words) == 1 and words[0] != "" and not words[0].startswith("dead ")
    return not words


def _place(locations: Any) -> str:
    return locations[0].place if locations else "gone"


def _values(course: Course) -> dict[str, str]:
    """The ends that the effects of acks tell, by member."""
    values: dict[str, str] = {}
    outcomes = {"settle": 1, "receive": 3}.get(course.call[0])
    for lease, _, others, _ in course.call[outcomes] if outcomes else ():
        for kind, index, more in others:
            name = course.before.leases.get(lease, {}).get(index)
            for effect, *words in more if kind == "value" else ():
                if effect == "member" and name is not None:
                    values[name] = words[-1]
    return values


def _changed_steps(course: Course) -> str | None:
    for name, before in course.before.runs.items():
        after = course.after.runs.get(name)
        if after is None:
            return f"the state of {name} is gone"
        for field, value in before.items():
            if not field.startswith("@") and after.get(field) != value:
                return f"{field} of {name} was {value!r}, and is {after.get(field)!r}"
    return None


def _changed_results(course: Course) -> str | None:
    before, after = course.before, course.after
    for name in before.results.keys() | after.results.keys():
        if before.results.get(name) == after.results.get(name):
            continue
        was, now = before.locations.get(name), after.locations.get(name)
        if (was and not now) or (now and (now[0].place == "dead") != (_place(was) == "dead")):
            continue
        if course.call[0] not in ("store", "abandon"):
            return f"{name} is {_place(now)}, and its result became {after.results.get(name)!r}"
    return None


# -- every state ---------------------------------------------------------------------------------


def astray(queue: View) -> str | None:
    """A group or a run that waits for something that is neither there nor on its way."""
    ends: set[str] = set()
    cancelled = set(queue.cancelled)
    for entry in queue.outbox.values():
        if rest := _rest_of(entry.get("join", ""), entry.get("words", "")):
            cancelled |= rest
        elif "join" in entry:
            ends.add(f"{entry['join']}.{entry['member']}")
    coming = {entry["head"].split(" ")[1] for entry in queue.outbox.values() if "head" in entry}
    for group, join in queue.joins.items():
        tally = Tally.of(join)
        if tally.over != (tally.fires or tally.fails):
            return f"{group} is {tally}"
        if tally.over == (group in queue.open_joins):
            return f"{group} is over: {tally.over}, and among those that are not: {not tally.over}"
        for member in map(str, range(tally.size)):
            name = f"{group}.{member}"
            place = _place(queue.locations.get(name))
            if tally.over:
                if "@rest" in join and place not in ("gone", "dead") and name not in cancelled:
                    return f"{group} is decided, and nothing cancels {name}, which is {place}"
                continue
            waits = member not in tally.words and place in ("gone", "dead") and name not in coming
            if (waits or (member in tally.dead and place != "dead")) and name not in ends:
                return f"{group} waits for {name}, which is {place}"
    for name, state in queue.runs.items():
        waits_for = state.get("@waits")
        if _place(queue.locations.get(name)) != "delayed" or waits_for is None:
            continue
        if waits_for in state:
            return f"{name} waits for {waits_for}, which was given"
        group = waits_for.removeprefix("!")
        if group.startswith("g") and group not in queue.open_joins:
            return f"{name} waits for {group}, which has ended"
    for name in queue.open_runs:
        if name not in queue.locations and name not in coming:
            return f"the run {name} has no message"
    return None


def just(call: Any, before: View, refused: Refused) -> bool:
    """Whether a call was refused for a reason."""
    if refused.error == "LeaseLostError":
        lease, message = (call[1], call[2]) if call[0] == "step" else (call[5], "r")
        return bool(before.leases.get(lease, {}).get("0") != message)
    return refused.error == "RunEndedError" and call[1] not in before.open_runs
