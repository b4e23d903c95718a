"""Ways to break groups of calls, outboxes and runs, each of which one small world has to find."""

from __future__ import annotations

from typing import Final

from verification.interleavings.mutation import SETTLES, Mutation

__all__ = ["FLOW_MUTATIONS"]

#: The scripts that tell others of the ends of messages, in these worlds.
_ENDERS: Final = (*SETTLES, "redrive", "drop")

FLOW_MUTATIONS: Final = {
    "join-early": Mutation(
        "a callback is sent when one member is still waited for",
        "relays",
        ("gather",),
        (
            (
                "policy ~= 'first' and left == 0\n  local failed",
                "policy ~= 'first' and left <= 1\n  local failed",
            ),
        ),
    ),
    "join-never": Mutation(
        "a callback is not sent",
        "relays",
        ("gather",),
        (("policy ~= 'first' and left == 0\n  local failed", "false\n  local failed"),),
    ),
    "relay-forgets": Mutation(
        "an outbox forgets an entry more than is stored",
        "relays",
        ("forward",),
        (("text(number + 1) .. '-0')", "text(number + 2) .. '-0')"),),
    ),
    "relay-repeats": Mutation(
        "a destination stores what it has stored before",
        "relays",
        ("accept",),
        (("if message.number > last then", "if true then"),),
    ),
    "end-repeats": Mutation(
        "an end is counted again that was counted before",
        "redriven",
        ("gather",),
        (("  if tonumber(ARGV[at]) > last then\n    decided", "  if true then\n    decided"),),
    ),
    "end-overwrites": Mutation(
        "a later end of a member counts, too",
        "relays",
        ("gather",),
        (
            ("  if older and not was_dead or not older and words == '' then return 0 end\n", ""),
            ("  if tonumber(ARGV[at]) > last then\n    decided", "  if true then\n    decided"),
            ("left = left + waits(kept) - waits(older or '')", "left = left - 1"),
        ),
    ),
    "redriven-twice": Mutation(
        "a redriven member is not waited for again",
        "redriven",
        ("gather",),
        (
            (
                "left = left + waits(kept) - waits(older or '')",
                "left = left + waits(kept) - waits('')",
            ),
        ),
    ),
    "redrive-untold": Mutation(
        "a group does not hear that a dead letter is redriven",
        "redriven",
        ("redrive",),
        (("  tell_others(head, id, '')\n", ""),),
    ),
    "drop-untold": Mutation(
        "a group does not hear that a dead letter is dropped",
        "dropped",
        ("drop",),
        (("  if id then tell_others(head, id, 'purged', true) end\n", ""),),
    ),
    "drop-unread": Mutation(
        "a drop reads no dead letter, as if none belonged to a group",
        "dropped",
        ("drop",),
        ((" or redis.call('HEXISTS', stats, 'dead_of_groups') == 1", ""),),
    ),
    "end-untold": Mutation(
        "a group hears of acks alone",
        "abandoned",
        SETTLES,
        (("  if id then tell_others(head, id, words) end\n", ""),),
    ),
    "begin-again": Mutation(
        "a group that has ended is begun again by a repeated call",
        "abandoned",
        ("join",),
        (("if not is_again and last and number <= last or is_other", "if is_other"),),
    ),
    "effects-stale": Mutation(
        "effects are applied although the ack does not count",
        "effects",
        SETTLES,
        (
            (
                "      if item then move(other, other.index, item) else stale = stale + 1 end",
                "      if item then move(other, other.index, item) else stale = stale + 1 end\n"
                "      if not item and other.effects then apply_effects(other.effects, 'x', to, now, amounts) end",
            ),
        ),
    ),
    "effects-lost": Mutation(
        "an ack counts that rides on a receive, and its effects are not applied",
        "effects",
        ("settle_receive",),
        (
            (
                "      if item then move(other, other.index, item) else",
                "      if not results and other.effects then other.effects = {} end\n"
                "      if item then move(other, other.index, item) else",
            ),
        ),
    ),
    "memo-overwrites": Mutation(
        "the second value of a step counts",
        "steps",
        ("step",),
        (("  if not older then\n", "  if true then\n"),),
    ),
    "memo-unfenced": Mutation(
        "a delivery that was given up records a step",
        "steps",
        ("step",),
        (("if not held then return { 'GONE' } end\n", ""),),
    ),
    "signal-overwrites": Mutation(
        "the second value of a signal counts",
        "signals",
        ("signal",),
        (("  if not found[1] then redis", "  if true then redis"),),
    ),
    "signal-unheard": Mutation(
        "a run waits although its signal was given before",
        "signals",
        SETTLES,
        (
            (
                "  if other.words ~= '' and redis.call('HEXISTS', run, other.words) == 1 then\n",
                "  if false then\n",
            ),
        ),
    ),
    "signal-sleeps": Mutation(
        "a signal does not wake the run that waits for it",
        "signals",
        ("signal",),
        (("  local item = found[3] == signal and found[2]\n", "  local item = nil\n"),),
    ),
    "gather-unfenced": Mutation(
        "a delivery that was given up begins a group for its run",
        "gathers",
        ("join",),
        (("if not held then return { 'STALE' } end\n", ""),),
    ),
    "gather-unsaid": Mutation(
        "the end of a group wakes no run",
        "gathers",
        ("gather",),
        (("    if redis.call('ZSCORE', runs, target[1]) then", "    if false then"),),
    ),
    "rest-unsaid": Mutation(
        "the first success tells no queue to cancel the rest",
        "rest",
        ("gather",),
        (("    if fires then cancel_rest(id, now) end\n", ""),),
    ),
    "rest-of-all": Mutation(
        "members that have ended are cancelled with the rest",
        "rest",
        ("gather",),
        (("if not ended[string.match(part, '^%d+')] then", "if part then"),),
    ),
    "rest-unheard": Mutation(
        "a queue that is told to cancel the rest does not",
        "rest",
        ("gather",),
        (("    leave_tombstones(id, parts, now)\n", ""),),
    ),
}
