"""The documentation is true: its Python blocks run, and the commands and files that it names exist.

A block that is marked as `text output` is something that the Python blocks of its page print.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, name_of, normalised

TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The blocks of one page run in order, in one namespace, in an empty folder."""
    # Leading blank lines make the line numbers of a traceback those of the page.
    texts = ["\n" * block.line + block.text for block in blocks(page, "python")]
    if any(
        "conquiet.spark" in text or "conquiet.reconcile.spark" in text or "conquiet.reconcile.report" in text
        for text in texts
    ):
        # Spark's JVM outlives its session and stays in the folder it was started in, so each page gets its own process.
        prints(page, run_apart(page, texts, tmp_path))
        return
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for text in texts:
        exec(compile(text, str(page), "exec"), namespace)
    printed = capfd.readouterr()
    prints(page, printed.out + printed.err)


def prints(page: Path, printed: str) -> None:
    for block in blocks(page, "text"):
        if block.info == "output":
            assert normalised(block.text) in normalised(printed), f"{name_of(page)}:{block.line}\n{printed}"


def run_apart(page: Path, texts: list[str], folder: Path) -> str:
    program = "import json, sys\nfor text in json.load(sys.stdin):\n exec(compile(text, sys.argv[1], 'exec'))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(page)],
        cwd=folder,
        input=json.dumps(texts),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")], ids=name_of)
def test_commands_and_files_in_bash_blocks_exist(page: Path) -> None:
    missing = [
        f"{name_of(page)}:{block.line + 1 + number}: {what}"
        for block in blocks(page, "bash")
        for number, line in enumerate(block.text.splitlines())
        for what in missing_from(line.split("#")[0])
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def missing_from(line: str) -> list[str]:
    """Make targets, modules and files that a shell line names and that do not exist."""
    words = [word.strip("\"'") for word in re.split(r"[\s=;|&]+", line) if word]
    missing = []
    for before, word in zip(["", *words], words, strict=False):
        if (before == "make" and re.fullmatch(r"[a-z]+", word) and word not in TARGETS) or (
            before == "-m" and word.startswith("conquiet") and importlib.util.find_spec(word) is None
        ):
            missing.append(f"{before} {word}")
        elif (
            re.fullmatch(r"[\w.-]+(/[\w.-]+)+", word)
            and not word.startswith(".venv")
            and not (ROOT / word).exists()
        ):
            missing.append(word)
    return missing


@pytest.mark.parametrize("line", ["make nonsense", "python -m conquiet.nonsense", "cat tests/nonsense.py"])
def test_the_check_notices(line: str) -> None:
    assert missing_from(line) != []
