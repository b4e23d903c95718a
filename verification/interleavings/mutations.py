"""Ways to break the product, each of which one small world has to find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from verification.interleavings.flow_mutations import FLOW_MUTATIONS
from verification.interleavings.mutation import SETTLES, Mutation
from verification.interleavings.world import World
from verification.interleavings.worlds import world_of

__all__ = ["MUTATIONS", "Mutation", "made"]


MUTATIONS: Final = {
    "ack-unchecked": Mutation(
        "an ack counts whether its receipt is held or not",
        "receipts",
        SETTLES,
        (
            (
                "local held = redis.call('HDEL', lease.key, index)",
                "redis.call('HDEL', lease.key, index) local held = 1",
            ),
            (
                "acked = acked + take_out_of(lease.key, lease.acks)",
                "take_out_of(lease.key, lease.acks) acked = acked + #lease.acks",
            ),
        ),
    ),
    "pop-first": Mutation(
        "a receive takes messages out of ready before it writes their lease",
        "halfway",
        ("settle_receive",),
        (
            (
                "  for number, seen in pairs(cut) do\n"
                "    if seen > 0 then redis.call('LTRIM', ready(number), seen, -1) end\n"
                "  end\n",
                "",
            ),
            (
                "  if #batch.items > 0 then\n    write_items(",
                "  for number, seen in pairs(cut) do\n"
                "    if seen > 0 then redis.call('LTRIM', ready(number), seen, -1) end\n"
                "  end\n"
                "  if #batch.items > 0 then\n    write_items(",
            ),
        ),
    ),
    "reap-forgets-suspects": Mutation(
        "a reap does not write those that are to be delivered alone",
        "blame",
        ("reap",),
        (("  redis.call('RPUSH', suspect, unpack(items))\n", ""),),
    ),
    "send-unnumbered": Mutation(
        "a send in doubt is repeated without its lane and number", "lanes", numberless=True
    ),
    "settle-whole": Mutation(
        "an ack of some messages of a lease acks them all",
        "receipts",
        SETTLES,
        (
            (
                "local held = redis.call('HDEL', lease.key, index)",
                "local held = redis.call('DEL', lease.key)",
            ),
            (
                "acked = acked + take_out_of(lease.key, lease.acks)",
                "acked = acked + count_held(lease.key) redis.call('DEL', lease.key)",
            ),
        ),
    ),
    "settle-ignores-parts": Mutation(
        "outcomes of a part of a lease are counted as done, and not applied",
        "parts",
        SETTLES,
        (
            (
                "acked = acked + take_out_of(lease.key, lease.acks)",
                "acked = acked + #lease.acks",
            ),
        ),
    ),
    "reap-no-suspects": Mutation(
        "who may have cost a worker its life is put back to the others",
        "blame",
        ("reap",),
        (("if is_suspect(message) then", "if false then"),),
    ),
    "ghost-stored": Mutation(
        "a send that arrives behind newer ones of its lane is stored",
        "lanes",
        ("send",),
        (("if last and sequence < last then return { 'GHOST' } end", ""),),
    ),
    "resume-creates": Mutation(
        "a repeated receive makes the lease that it does not find",
        "receipts",
        ("settle_receive",),
        (
            (
                "local resumed = ARGV[2] == '1'",
                "local resumed = ARGV[2] == '1' and redis.call('EXISTS', request.key) == 1",
            ),
        ),
    ),
    "shared-buries": Mutation(
        "what was lost in company is held against max receives",
        "blame",
        ("reap",),
        (
            (
                "message.nacks + message.timeouts >= limit then\n    local item",
                "message.nacks + message.timeouts + message.shared >= limit then\n    local item",
            ),
        ),
    ),
    "suspect-unheard": Mutation(
        "a suspect that was given back wakes no receiver if the same call takes none",
        "handed",
        ("settle_receive",),
        (("  waiting = left == 0 and", "  waiting = left or left == 0 and"),),
    ),
    "no-grace": Mutation(
        "leases are taken back at once after a time without reapers",
        "blame",
        ("reap", "sweep"),
        (("if away_ms < 0 or away_ms > math.max(3 * tick_ms, 2000) then", "if false then"),),
    ),
    "settle-source-first": Mutation(
        "messages leave their lease before they are written elsewhere",
        "halfway",
        SETTLES,
        (
            (
                "  local rung = write_places(to, later)\n"
                "  if has_groups then groups().vacate_all(lease.id, gone) end\n"
                "  return take_out_of(lease.key, gone), stale, rung\n",
                "  local left = take_out_of(lease.key, gone)\n"
                "  if has_groups then groups().vacate_all(lease.id, gone) end\n"
                "  return left, stale, write_places(to, later)\n",
            ),
        ),
    ),
    **FLOW_MUTATIONS,
}


def made(world: str, small: bool, mutation: str) -> tuple[World, Mapping[str, bytes]]:
    """A world, and the scripts that differ in it; `mutation` '' is none."""
    if not mutation:
        return world_of(world, small=small), {}
    how = MUTATIONS[mutation]
    there = world_of(world, small=small)
    return there.with_numberless_repetitions() if how.numberless else there, how.changed()
