"""Histories: what really happened to every message or job, written down by each process, and checked.

Each process appends to one file, with one write per step: a line before an operation begins and a line after it
ended. On one machine the order of the lines is then real time, whoever is killed whenever:

    history = History("run.history")
    with history.operation("enqueue") as op:
        op.ok(queue.enqueue(payload))
    with history.operation("ack", msg.id, holder=consumer_name):
        queue.ack(msg)
    …
    check("run.history").raise_if_broken()

What the checker understands (other names are kept and not judged):

enqueue     ok: the id is in the queue. The id may be known only at the end.
deliver     ok (or `claim`, the same): the id is held by `holder` from the server's time `at`, and nobody else may
            get it before `until`. One operation may deliver many ids, or none. Times are the server's own, in one
            unit for the whole history; `until=math.inf` where a hold never runs out; without times this is not
            judged. `version` counts the holds of an id.
handle      from the start of the handler until its effect is durable: ok means committed. A holder that finds the
            effect done already has handled it too, and says ok.
heartbeat   ok: the hold lasts until `until`.
nack, release           ok: the holder gave it back.
ack, bury, discard      ok: it is done, it has failed for good, it was removed: it is never delivered again. (An id
                        that starts anew after that, say by a person's retry, is recorded under a new name.)

`fail` means that it surely did not happen. `unknown` (a connection lost, an interrupt) and an operation without
an end (its process was killed) may have happened, and the checker allows for both.

What is checked, in time and memory proportional to the history; `Violation.kind` says which was broken:

lost                 enqueued, and no handle ended ok (once drained)
undrained            enqueued or delivered, and not acknowledged: no ack (bury, discard) was ok or may have been
                     (once drained)
unhandled-ack        acknowledged before any handle of it was ok, whatever came later
delivered-after-ack  a delivery was asked for (or made, by the server's time) after an ack was ok
handled-after-ack    a holder began to handle under a hold that it had itself acknowledged
handled-after-release    the same, after it gave the hold back
never-delivered      handled, or settled with success, by a holder that did not get it
two-holders          a hold began, by the server's time, before another one's latest `until`, which had not been ended
version              two holds of one version, or versions against the order of time
phantom              delivered, and nobody enqueued it
enqueued-twice       one id enqueued twice
empty                there is nothing to check

and with `fenced=True`, where holders are lease tokens (a stream's consumer names are not: XACK asks nobody's name):

token-reused         a token was given out twice
stale-settle         ack, nack, release, bury or heartbeat was ok after the next holder had it, or past `until`

No violation, but counted as `late_handlers`: a holder that got the item before somebody else's ack and began to
handle it after. It was paused, it lost its hold, and it cannot know; no queue can prevent that. Its effect must be
idempotent or fenced, which is for the test of the effect to show.
"""

from conquiet.verify.history.checker import check
from conquiet.verify.history.event import Event, read_events
from conquiet.verify.history.recorder import History, Operation
from conquiet.verify.history.verdict import Counts, Verdict, Violation

__all__ = ["Counts", "Event", "History", "Operation", "Verdict", "Violation", "check", "read_events"]
