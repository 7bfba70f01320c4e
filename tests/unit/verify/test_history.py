"""The history checker: it finds a violation of every rule, and accepts what only looks like one.

Histories are written by hand, step by step: `[op phase] name [id] [@holder] [key=value…]`. A step without op and
phase (`ack m @A`) is an operation that began and ended with nothing in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from conquiet.errors import LeaseLostError, PartialEnqueueError, QueueConnectionError
from conquiet.verify.history import Event, History, check, read_events
from conquiet.verify.history.event import PHASES

NORMAL = "enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A; "

BROKEN = """
enqueued and never seen again => lost
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A; enqueue lost-one

delivered, and its handler always fails => lost
  enqueue m; deliver m @A; 1 invoke handle m @A; 1 fail handle m @A

killed in the handler, and nobody took over => lost
  enqueue m; deliver m @A; 1 invoke handle m @A

handled and never acknowledged => undrained
  enqueue m; deliver m @A; handle m @A

the ack failed, and nobody tried again => undrained
  enqueue m; deliver m @A; handle m @A; 1 invoke ack m @A; 1 fail ack m @A

an enqueue of unknown outcome that was delivered must be finished too => undrained
  1 invoke enqueue m; 1 unknown enqueue m; deliver m @A; handle m @A

acknowledged, then handled => unhandled-ack handled-after-ack
  enqueue m; deliver m @A; ack m @A; handle m @A

acknowledged while the effect is not durable yet => unhandled-ack
  enqueue m; deliver m @A; 1 invoke handle m @A; 2 invoke ack m @A; 1 ok handle m @A; 2 ok ack m @A

acknowledged, perhaps, without handling => unhandled-ack
  enqueue m; deliver m @A; 1 invoke ack m @A; 1 unknown ack m @A; deliver m @B; handle m @B; ack m @B

asked for after the ack => delivered-after-ack
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A; deliver m @B

asked for before the ack, given out after it => delivered-after-ack
  enqueue m; deliver m @A at=0 until=10; handle m @A; 1 invoke deliver @B; ack m @A at=20;
  1 ok deliver m @B at=21 until=31

handled again after its own ack => handled-after-ack
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A; handle m @A

handled after it was given back => handled-after-release
  enqueue m; deliver m @A at=0 until=10; release m @A; handle m @A; deliver m @B at=2 until=12;
  handle m @B; ack m @B

handled by somebody who did not get it => never-delivered
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @B; ack m @A

acknowledged by somebody who did not get it => never-delivered
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @B

delivered again too early => two-holders
  enqueue m; deliver m @A at=0 until=10; deliver m @B at=9.9 until=20; handle m @B; ack m @B

delivered again too early, to the same holder => two-holders
  enqueue m; deliver m @A at=0 until=10; deliver m @A at=5 until=15; handle m @A; ack m @A

delivered again in spite of a heartbeat => two-holders
  enqueue m; deliver m @A at=0 until=10; heartbeat m @A at=8 until=18; deliver m @B at=11 until=21;
  handle m @B; ack m @B

delivered again in spite of a heartbeat that was written down later => two-holders
  enqueue m; deliver m @A at=0 until=10; 1 invoke heartbeat m @A; deliver m @B at=11 until=21;
  1 ok heartbeat m @A at=8 until=18; handle m @B; ack m @B

delivered again, and given back only after that => two-holders
  enqueue m; deliver m @A at=0 until=10; deliver m @B at=2 until=12; release m @A; handle m @B; ack m @B

delivered again although giving it back failed => two-holders
  enqueue m; deliver m @A at=0 until=10; 1 invoke release m @A; 1 fail release m @A;
  deliver m @B at=2 until=12; handle m @B; ack m @B

given back by the server's time only after the next one had it => two-holders
  enqueue m; deliver m @A at=0 until=10; 1 invoke nack m @A; deliver m @B at=2 until=12;
  1 ok nack m @A at=3; handle m @B; ack m @B

two holders, the first of whom wrote it down last => two-holders
  enqueue m; 1 invoke deliver @A; deliver m @B at=5 until=15; 1 ok deliver m @A at=0 until=10; handle m @B;
  ack m @B

a hold without end taken over => two-holders
  enqueue m; deliver m @A at=0 until=inf; deliver m @B at=1e9 until=inf; handle m @B; ack m @B

a version twice => version
  enqueue m; deliver m @A version=1; deliver m @B version=1; handle m @B; ack m @B

versions that go back, by the order of the calls => version
  enqueue m; deliver m @A version=2; deliver m @B version=1; handle m @B; ack m @B

versions that go back, by the server's time => version
  enqueue m; 1 invoke deliver @A; 2 invoke deliver @B; 1 ok deliver m @A version=2 at=0 until=10;
  2 ok deliver m @B version=1 at=11 until=20; handle m @B; ack m @B

delivered, but nobody enqueued it => phantom
  deliver m @A at=0 until=10 version=1; handle m @A; ack m @A

delivered, but its enqueue had failed => phantom
  1 invoke enqueue m; 1 fail enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A

one id enqueued twice => enqueued-twice
  enqueue m; enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A

acknowledged and never handled => unhandled-ack lost
  enqueue m; deliver m @A; ack m @A
"""

# Similar histories without a violation
LEGAL = """
the normal case => nothing
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A

delivered before the producer has written down that it enqueued => nothing
  1 invoke enqueue; deliver m @A; 1 ok enqueue m; handle m @A; ack m @A

killed after the delivery, before it was written down => nothing
  enqueue m; 1 invoke deliver @A; deliver m @B at=50 until=60 version=2; handle m @B; ack m @B

killed in the handler, and taken over when the hold had run out => nothing
  enqueue m; deliver m @A at=0 until=10 version=1; 1 invoke handle m @A;
  deliver m @B at=10 until=20 version=2; handle m @B; ack m @B

killed between commit and ack => nothing
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; deliver m @B at=12 until=22 version=2;
  handle m @B; ack m @B

killed in the ack, which had happened => nothing
  enqueue m; deliver m @A; handle m @A; 1 invoke ack m @A

the ack is unknown and had not happened: delivered again => nothing
  enqueue m; deliver m @A at=0 until=10; handle m @A; 1 invoke ack m @A; 1 unknown ack m @A;
  deliver m @B at=10 until=20; handle m @B; ack m @B

asked for before the ack was known, given out before it => nothing
  enqueue m; deliver m @A at=0 until=10; handle m @A; 1 invoke deliver @B; ack m @A at=12;
  1 ok deliver m @B at=11 until=21

a failed handler, delivered again => nothing
  enqueue m; deliver m @A at=0 until=10; 1 invoke handle m @A; 1 fail handle m @A;
  deliver m @A at=10 until=20; handle m @A; ack m @A

two attempts within one hold => nothing
  enqueue m; deliver m @A at=0 until=10 version=1; 1 invoke handle m @A; 1 fail handle m @A; handle m @A;
  ack m @A

a hold that lasts as long as its heartbeats say => nothing
  enqueue m; deliver m @A at=0 until=10; heartbeat m @A at=8 until=18; heartbeat m @A at=16 until=26;
  deliver m @B at=26 until=36; handle m @B; ack m @B

given back early => nothing
  enqueue m; deliver m @A at=0 until=10; nack m @A at=1; deliver m @B at=1 until=11; handle m @B; ack m @B

given back, and delivered before that was written down => nothing
  enqueue m; deliver m @A at=0 until=10; 1 invoke release m @A; deliver m @B at=2 until=12;
  1 ok release m @A at=1; handle m @B; ack m @B

given back, perhaps, by a process that was killed => nothing
  enqueue m; deliver m @A at=0 until=10; 1 invoke release m @A; deliver m @B at=2 until=12; handle m @B;
  ack m @B

paused between getting it and writing that down, until the next one had it => nothing
  enqueue m; 1 invoke deliver @A; deliver m @B at=10 until=20 version=2;
  1 ok deliver m @A at=0 until=10 version=1; handle m @B; ack m @B

given back and delivered within one tick of the clock => nothing
  enqueue m; 1 invoke deliver @B; deliver m @A at=0 until=10; 2 invoke release m @A;
  1 ok deliver m @B at=0 until=10; 2 ok release m @A at=0; handle m @B; ack m @B

acknowledged by a person who never got it => nothing
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m

acknowledged by a holder of the past, as XACK allows => nothing
  enqueue m; deliver m @A at=0 until=10; handle m @A; deliver m @B at=10 until=20; ack m @A; ack m @B

failed for good => nothing
  enqueue m; deliver m @A; 1 invoke handle m @A; 1 fail handle m @A; bury m @A

removed by a person => nothing
  enqueue m; discard m

an enqueue whose id nobody learned, and it was in => nothing
  1 invoke enqueue; 1 unknown enqueue; deliver m @A; handle m @A; ack m @A

an enqueue whose id nobody learned, because its process was killed => nothing
  1 invoke enqueue; deliver m @A; handle m @A; ack m @A

claimed, which is a delivery by another name => nothing
  enqueue m; claim m @A at=0 until=10; handle m @A; ack m @A

an enqueue that failed => nothing
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A; 1 invoke enqueue n;
  1 fail enqueue n

an enqueue of unknown outcome that was not in => nothing
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A; 1 invoke enqueue n;
  1 unknown enqueue n

one read that brought many, and one that brought none => nothing
  enqueue m; enqueue n; 1 invoke deliver @A; 1 ok deliver m @A; 1 ok deliver n @A; handle m @A;
  handle n @A; 2 invoke ack m @A; 2 invoke ack n @A; 2 ok ack m @A; 2 ok ack n @A; 3 invoke deliver @A;
  3 ok deliver @A

operations of other names => nothing
  enqueue m; deliver m @A at=0 until=10 version=1; handle m @A; ack m @A; vacuum; prune m
"""

# Histories in which holders are lease tokens
FENCED = """
a token given out twice => token-reused
  enqueue m; enqueue n; deliver m @t1 at=0 until=10; handle m @t1; ack m @t1; deliver n @t1 at=5 until=15;
  handle n @t1; ack n @t1

a stale ack accepted => stale-settle
  enqueue m; deliver m @t1 at=0 until=10 version=1; handle m @t1; deliver m @t2 at=10 until=20 version=2;
  ack m @t1

a stale heartbeat accepted => stale-settle
  enqueue m; deliver m @t1 at=0 until=10 version=1; deliver m @t2 at=10 until=20 version=2;
  heartbeat m @t1 until=9; handle m @t2; ack m @t2

an ack accepted on an expired lease that nobody had taken => stale-settle
  enqueue m; deliver m @t1 at=0 until=10; handle m @t1; ack m @t1 at=10.5

a heartbeat that revived an expired lease => stale-settle
  enqueue m; deliver m @t1 at=0 until=10; heartbeat m @t1 at=11 until=21; handle m @t1; ack m @t1 at=12

settled within what a heartbeat has added => nothing
  enqueue m; deliver m @t1 at=0 until=10; heartbeat m @t1 at=8 until=18; handle m @t1; ack m @t1 at=15

refused after the next one had it => nothing
  enqueue m; deliver m @t1 at=0 until=10 version=1; handle m @t1; deliver m @t2 at=10 until=20 version=2;
  1 invoke ack m @t1; 1 fail ack m @t1; handle m @t2; ack m @t2

settled in time, refused when late, perhaps extended => nothing
  enqueue m; deliver m @t1 at=0 until=10 version=1; heartbeat m @t1 at=9 until=19;
  1 invoke ack m @t1; 1 fail ack m @t1; deliver m @t2 at=19 until=29 version=2;
  2 invoke heartbeat m @t2; handle m @t2; ack m @t2 at=35
"""


def cases(text: str) -> dict[str, tuple[set[str], str]]:
    """Parse paragraphs of a line `name => violations` and the steps."""
    parts = [paragraph.partition("\n") for paragraph in text.strip().split("\n\n")]
    titles = [title.split(" => ") for title, _, _ in parts]
    return {
        name: (set(kinds.split()) - {"nothing"}, steps)
        for (name, kinds), (_, _, steps) in zip(titles, parts, strict=True)
    }


def written(text: str) -> list[Event]:
    events = []
    numbers = count(1)
    for words in map(str.split, re.split(r"[;\n]", text)):
        if not words:
            continue
        op, phases = f"op-{next(numbers)}", ["invoke", "ok"]
        if words[1:] and words[1] in PHASES:
            op, phases = words[0], [words[1]]
            words = words[2:]
        fields: dict[str, Any] = {}
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if word.startswith("@"):
                fields["holder"] = word[1:]
            elif equals:
                fields[name] = int(value) if name == "version" else float(value)
            else:
                fields["id"] = word
        for phase in phases:
            known = fields
            if phase == "invoke" and len(phases) == 2 and words[0] in ("deliver", "claim", "enqueue"):
                known = {"holder": fields.get("holder")}  # as in a real run: the result is not known yet
            events.append(Event(phase, words[0], op, **known))  # type: ignore[arg-type]
    return events


def kinds(text: str, **options: bool) -> set[str]:
    return check(written(text), **options).kinds


@pytest.mark.parametrize(("expected", "steps"), cases(BROKEN).values(), ids=cases(BROKEN))
def test_the_checker_finds(expected: set[str], steps: str) -> None:
    assert kinds(steps) == expected


@pytest.mark.parametrize(("expected", "steps"), cases(LEGAL).values(), ids=cases(LEGAL))
def test_the_checker_lets_pass(expected: set[str], steps: str) -> None:
    check(written(steps)).raise_if_broken()


@pytest.mark.parametrize(("expected", "steps"), cases(FENCED).values(), ids=cases(FENCED))
def test_the_checker_finds_among_leases(expected: set[str], steps: str) -> None:
    assert kinds(steps, fenced=True) == expected
    assert kinds(steps) == set()  # consumer names are not tokens


def test_an_empty_history_proves_nothing() -> None:
    assert kinds("") == {"empty"}
    assert kinds("1 invoke deliver @A; 1 ok deliver @A") == {"empty"}


def test_a_run_that_is_not_drained_may_have_work_left() -> None:
    text = NORMAL + "enqueue n; enqueue o; deliver o @A; handle o @A"
    assert kinds(text) == {"lost", "undrained"}
    assert kinds(text, drained=False) == set()


def test_a_late_handler_is_counted_and_is_no_violation() -> None:
    verdict = check(
        written(
            "enqueue m; deliver m @A at=0 until=10; deliver m @B at=10 until=20; handle m @B; ack m @B;"
            "handle m @A"
        )
    )
    verdict.raise_if_broken()
    assert verdict.counts.late_handlers == 1


def test_the_counts() -> None:
    counts = check(
        written(
            NORMAL
            + "enqueue n; deliver n @A; 1 invoke handle n @A; 1 fail handle n @A; deliver n @B; handle n @B;"
            "2 invoke ack n @B; 2 unknown ack n @B; enqueue o; discard o; 3 invoke deliver @B"
        )
    ).counts
    assert (counts.enqueued, counts.delivered, counts.redelivered) == (3, 3, 1)
    assert (counts.handled, counts.acked, counts.buried) == (2, 1, 1)
    assert (counts.failed, counts.unknown, counts.torn) == (1, 2, 0)
    assert counts.events == 8 + 17


def test_the_verdict_shows_the_lines_that_prove_it() -> None:
    verdict = check(
        written("enqueue m; deliver m @A at=0 until=10; deliver m @B at=3 until=13; handle m @B; ack m @B")
    )
    [violation] = verdict.violations
    assert violation.id == "m"
    assert violation.message == "B got it at 3.0, while A held it until 10.0"
    assert [line.split(":")[0] for line in violation.evidence] == ["line 4", "line 6"]
    with pytest.raises(
        AssertionError, match=r'(?s)two-holders: m: B got it.*line 6: {"phase":"ok","name":"deliver"'
    ):
        verdict.raise_if_broken()


def test_a_report_of_thousands_of_violations_stays_readable() -> None:
    report = str(check(written("\n".join(f"enqueue m{number}" for number in range(5_000)))))
    assert "broken, 5000 times" in report
    assert "… and 4990 more" in report
    assert len(report) < 5_000


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1 ok enqueue m", "line 1: operation 1 ends, but its beginning is not recorded"),
        ("1 invoke ack m; 1 invoke ack m", "line 2: operation 1 begins a second time"),
        ("1 invoke ack m; 1 ok nack m", "line 2: operation 1 began as ack, not nack"),
    ],
)
def test_a_history_that_contradicts_itself_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check(written(text))


def test_a_history_with_an_unknown_phase_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: a phase is one of invoke, ok, fail, unknown, not 'done'"):
        check([Event("done", "ack", "1", "m")])  # type: ignore[arg-type]


# The recorder


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "run.history") as history:
        yield history


def recorded(history: History) -> list[tuple[str, str, str | None, str | None]]:
    events = [event for _, event in read_events(history.path)]
    return [(event.phase, event.name, event.id, event.error) for event in events if event]


def test_an_operation_is_recorded_before_it_begins_and_after_it_ended(history: History) -> None:
    with history.operation("enqueue") as op:
        assert recorded(history) == [("invoke", "enqueue", None, None)]
        op.ok("7-0", at=3.5)
    assert recorded(history)[1:] == [("ok", "enqueue", "7-0", None)]
    [(_, first), (_, second)] = read_events(history.path)
    assert first
    assert second == first._replace(phase="ok", id="7-0", at=3.5)
    assert (first.pid, first.op != "") == (os.getpid(), True)


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (LeaseLostError("refused"), "fail"),
        (ValueError("no"), "fail"),
        (QueueConnectionError("lost"), "unknown"),
        (TimeoutError("lost"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
        (asyncio.CancelledError(), "unknown"),
    ],
)
def test_how_an_operation_ended_is_told_by_its_exception(
    history: History, error: BaseException, phase: str
) -> None:
    with pytest.raises(type(error)), history.operation("ack", "m", holder="A"):
        raise error
    assert recorded(history)[1:] == [(phase, "ack", "m", type(error).__name__)]


def test_which_exceptions_leave_the_outcome_unknown_can_be_said(tmp_path: Path) -> None:
    with History(tmp_path / "h", unknown=(LookupError,)) as history:
        for error in (KeyError("x"), QueueConnectionError("x")):
            with pytest.raises(type(error)), history.operation("ack", "m"):
                raise error
    assert [phase for phase, *_ in recorded(history)] == ["invoke", "unknown", "invoke", "fail"]


def test_a_batch_tells_of_each_item_and_of_the_rest(history: History) -> None:
    with history.operation("ack", "a", "b", "c") as op:
        op.fail("b", error="StaleLeaseError")
    with pytest.raises(PartialEnqueueError), history.operation("enqueue") as op:  # noqa: PT012
        op.ok("d")
        raise PartialEnqueueError("lost in the middle", ["d"], 5)
    with pytest.raises(QueueConnectionError), history.operation("ack", "e", "f") as op:  # noqa: PT012
        op.ok("e")
        op.unknown("f", error="says so itself")
        raise QueueConnectionError("lost")
    ends = [event for event in recorded(history) if event[0] != "invoke"]
    assert ends == [
        ("fail", "ack", "b", "StaleLeaseError"),
        ("ok", "ack", "a", None),
        ("ok", "ack", "c", None),
        ("ok", "enqueue", "d", None),
        ("unknown", "enqueue", None, "PartialEnqueueError"),
        ("ok", "ack", "e", None),
        ("unknown", "ack", "f", "says so itself"),
    ]


def test_a_note_about_one_of_many_says_which(history: History) -> None:
    with (
        pytest.raises(ValueError, match="ack has 2 ids: name one"),
        history.operation("ack", "a", "b") as op,
    ):
        op.ok()


def test_single_lines_can_be_recorded_by_hand(history: History) -> None:
    op = history.record("invoke", "handle", "m", holder="A")
    history.record("ok", "handle", "m", op=op, holder="A")
    assert [phase for phase, *_ in recorded(history)] == ["invoke", "ok"]
    with pytest.raises(ValueError, match="phase is one of"):
        history.record("done", "handle", op=op)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="its end needs it"):
        history.record("ok", "handle")


def test_a_full_disk_is_not_taken_for_a_recorded_event(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)
    with pytest.raises(OSError, match="is the disk full"):
        history.record("invoke", "ack", "m")


def test_threads_write_whole_lines(history: History) -> None:
    def work(number: int) -> None:
        for step in range(200):
            with history.operation("enqueue") as op:
                op.ok(f"{number}-{step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verdict = check(history.path, drained=False)
    verdict.raise_if_broken()
    assert (verdict.counts.enqueued, verdict.counts.events) == (1_600, 3_200)


def test_a_forked_child_has_operations_of_its_own(history: History) -> None:
    with history.operation("enqueue") as op:
        op.ok("parent-1")
    child = os.fork()
    if child == 0:
        with history.operation("enqueue") as op:
            op.ok("child")
        os._exit(0)
    os.waitpid(child, 0)
    with history.operation("enqueue") as op:
        op.ok("parent-2")
    check(history.path, drained=False).raise_if_broken()
    ops = {event.op for _, event in read_events(history.path) if event}
    assert len(ops) == 3


def test_the_stump_of_a_killed_write_costs_no_other_line(history: History) -> None:
    with history.operation("enqueue") as op:
        op.ok("m")
    history.record("invoke", "deliver", holder="A")
    with open(history.path, "ab") as file:  # a killed write ends at a page boundary
        file.write(Event("ok", "deliver", "1", "m" * 100).line()[:90])
    with history.operation("deliver", holder="B") as op:
        op.ok("m")
    with history.operation("handle", "m", holder="B"), history.operation("x"):
        pass
    with history.operation("ack", "m", holder="B"):
        pass
    verdict = check(history.path)
    verdict.raise_if_broken()
    assert (verdict.counts.torn, verdict.counts.unknown) == (1, 1)


@pytest.mark.parametrize("line", ["[1]", '{"phase":"ok"}', '{"what":1}', "hello"])
def test_a_file_that_is_no_history_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "other"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ValueError, match=r"line 2 of .*other is not an event of a history"):
        check(path)


def test_evidence_from_a_file_names_its_lines(history: History) -> None:
    with history.operation("enqueue") as op:
        op.ok("m")
    [violation] = check(history.path).violations
    lines = Path(history.path).read_text().splitlines()
    number, text = violation.evidence[0].removeprefix("line ").split(": ", 1)
    assert json.loads(lines[int(number) - 1]) == json.loads(text)


# Size


def long_history(messages: int) -> list[Event]:
    sample = written(NORMAL)
    return [
        event._replace(id=event.id and f"m{number}", op=f"{event.op}-{number}")
        for number in range(messages)
        for event in sample
    ]


def one_message_for_ever(messages: int) -> list[Event]:
    """The same id is held over and over: the worst case for a checker that compares holds with each other."""
    hold = "deliver m @A{0} at={1} until={2} version={3}; 1-{0} invoke handle m @A{0}; heartbeat m @A{0} until={2}"
    return written(
        "enqueue m \n"
        + "\n".join(hold.format(n, n * 10, n * 10 + 10, n + 1) for n in range(messages * 8 // 5))
        + f"\n handle m @{(last := f'A{messages * 8 // 5 - 1}')}; ack m @{last}"
    )


@pytest.mark.parametrize("make", [long_history, one_message_for_ever])
def test_the_time_grows_with_the_length_and_no_faster(make: Callable[[int], list[Event]]) -> None:
    def seconds(events: list[Event]) -> float:
        began = time.process_time()
        check(events, fenced=make is one_message_for_ever).raise_if_broken()
        return time.process_time() - began

    small, large = make(3_000), make(27_000)
    assert len(large) > 200_000
    base = min(seconds(small) for _ in range(3))
    whole = min(seconds(large) for _ in range(2))
    assert whole < 9 * base * 4  # quadratic would be a factor of 81
    assert whole < 5.0
