"""The corpus itself: large enough, the same every time, and the one JSON rule applied to all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conquiet.errors import PayloadError
from conquiet.payload import decode, encode
from tests.abuse.corpus import CANARY, corpus, deep, huge

ROOT = Path(__file__).parents[2]


def test_there_are_at_least_500_distinct_inputs_of_every_family() -> None:
    assert len({one.raw for one in corpus()}) == len(corpus()) >= 500
    assert len({one.name for one in corpus()}) == len(corpus())
    families = {one.name.rpartition("-")[0] for one in corpus()}
    assert len(families) == 14
    # There are enough inputs of every kind: valid and invalid text, names and payloads; and many that would leave
    # a trace if anything ran them.
    assert sum(one.is_unicode for one in corpus()) > 450
    assert sum(not one.is_unicode for one in corpus()) > 50
    assert sum(one.is_name for one in corpus()) > 450
    assert sum(one.payload is not None for one in corpus()) > 50
    assert sum(CANARY in one.text for one in corpus()) > 80


def test_the_corpus_is_the_same_in_every_process() -> None:
    code = "from tests.abuse.corpus import corpus; import hashlib, sys;"
    code += "sys.stdout.write(hashlib.sha256(repr(corpus()).encode('utf-8', 'surrogatepass')).hexdigest())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_what_would_be_executed_is_noticed(folder: Path) -> None:
    """The trap works: an input of the corpus, run on purpose, leaves the trace that the other tests look for."""
    (order,) = [one.text for one in corpus() if one.text == f"; touch {CANARY}"]
    subprocess.run(["sh", "-c", f"true {order}"], cwd=folder, check=True)
    trace = folder / CANARY
    assert trace.exists()
    trace.unlink()


def test_bytes_are_a_payload_or_refused_with_the_reason() -> None:
    for one in corpus():
        if one.payload is not None:
            assert decode(one.raw) == one.payload, one.name
            continue
        with pytest.raises(PayloadError) as refused:
            decode(one.raw)
        assert 10 < len(str(refused.value)) < 300
        assert str(refused.value).isprintable()


def test_text_is_a_value_and_a_key_or_refused_with_the_place() -> None:
    for one in corpus():
        for payload in ({"value": one.text}, {one.text: 1}, {"a": [0, {"b": one.text}]}):
            if one.is_unicode:
                assert decode(encode(payload)) == payload
            else:
                with pytest.raises(PayloadError, match=r"lone surrogate in (a key at )?\$"):
                    encode(payload)


def test_a_refusal_names_the_place_on_one_line_whatever_the_keys_are() -> None:
    for one in corpus():
        with pytest.raises(PayloadError) as refused:
            encode({one.text: {one.text: float("nan")}})
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 600


@pytest.mark.parametrize("raw", [huge(), deep(), deep(2_000), b"[" * 100_000, huge()[:-2]], ids=len)
def test_the_huge_and_the_deep_are_decoded_or_refused(raw: bytes) -> None:
    """There is no limit on size here: the bytes are already in memory. Excess depth is refused before it crashes."""
    if raw == huge():
        assert len(decode(raw)["value"]) == len(raw) - len('{"value":""}')
    else:
        with pytest.raises(PayloadError, match="not UTF-8 JSON"):
            decode(raw)
