"""Histories: every process records what happens to each message or job, and a checker judges the record.

Each process appends to one file, with one write per step: a line before an operation begins and a line after it ends.
On one machine the order of the lines is then the real order, even if processes are killed:

    history = History("run.history")
    with history.operation("enqueue") as op:
        op.ok(queue.enqueue(payload))
    with history.operation("ack", msg.id, holder=consumer_name):
        queue.ack(msg)
    …
    check("run.history").raise_if_broken()

The operations that the checker knows (others are kept and not judged):

enqueue     ok: the id is in the queue. The id may be known only at the end.
deliver     ok (`claim` is the same): `holder` holds the id from the server's time `at`, and no other holder may get it
            before `until`. One operation may deliver many ids, or none. Times are the server's, in one unit for the
            whole history; `until=math.inf` if a hold never expires; without times this is not judged. `version`
            counts the holds of an id.
handle      from the start of the handler until its effect is durable: ok means committed. A holder that finds the
            effect already done has handled it too, and records ok.
heartbeat   ok: the hold lasts until `until`.
nack, release           ok: the holder returned it.
ack, bury, discard      ok: it is done, it has failed permanently, it was removed: it is never delivered again. (An id
                        that starts again after that, for example by a manual retry, is recorded under a new name.)

`fail` means that the operation certainly did not happen. An `unknown` one (a lost connection, an interrupt) and one
without an end (its process was killed) may have happened; the checker allows for both possibilities.

The rules, checked in time and memory proportional to the history; `Violation.kind` is the name of the broken rule:

lost                 enqueued, and no handle ended ok (if drained)
undrained            enqueued or delivered, and not acknowledged: no ack (bury, discard) was ok or may have been
                     (if drained)
unhandled-ack        acknowledged before any handle of it was ok
delivered-after-ack  a delivery was requested (or made, by the server's time) after an ack was ok
handled-after-ack    a holder began to handle under a hold that it had itself acknowledged
handled-after-release    the same, after it released the hold
never-delivered      handled, or settled with success, by a holder that did not get it
two-holders          a hold began, by the server's time, before the latest `until` of another hold that had not ended
version              two holds of one version, or versions in the wrong order of time
phantom              delivered, but never enqueued
enqueued-twice       one id enqueued twice
empty                the history contains nothing to check

and with `fenced=True`, if holders are lease tokens (consumer names of a stream are not: XACK does not check the name):

token-reused         a token was issued twice
stale-settle         ack, nack, release, bury or heartbeat was ok after the next holder had it, or past `until`

Not a violation, but counted as `late_handlers`: a holder that got the item before another holder's ack and began to
handle it afterwards. It was paused, lost its hold, and cannot know; no queue can prevent that. Its effect must be
idempotent or fenced, which the test of the effect has to show.
"""

from conquiet.verify.history.checker import check
from conquiet.verify.history.event import Event, read_events
from conquiet.verify.history.recorder import History, Operation
from conquiet.verify.history.verdict import Counts, Verdict, Violation

__all__ = ["Counts", "Event", "History", "Operation", "Verdict", "Violation", "check", "read_events"]
