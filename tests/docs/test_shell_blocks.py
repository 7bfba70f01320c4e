"""The shell blocks of the documentation run, and print what it shows.

The blocks of a page run in order in one empty folder, with `conquiet` and `python` of this environment. A Python block that
the page says to save under a name is a file there. A `bash` block shows commands, a `console` block also their output.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks, name_of, normalised

# What does not run here, and why.
NOT_RUN = {
    "make run": "the main job takes a minute; tests/acceptance/demo runs it",
    "make test": "it is this suite",
    "make check": "it is a part of this suite",
    "make lint": "CI runs it before this suite",
    "make conformance": "it is this suite",
    "make campaign": "takes more than an hour; this suite runs the same tests, smaller",
    "make simulate": "takes minutes; tests/simulation runs the same schedules, fewer (SEED=17 runs here)",
    "make bench": "takes an hour; tests/docs/test_bench_keys.py runs a part of it",
    "make figures": "writes into the pages; tests/docs/test_figures.py checks them",
    "make release": "builds and installs the package in new environments, for minutes",
    "make compat": "installs other versions of redis-py, and takes ten minutes",
    "make lock": "asks a package index for versions",
    "make spark": "installs the environment in which this suite runs",
    "spark-submit": "needs a cluster; tests/spark/sink/test_cluster.py runs on executors in their own processes",
    "conquiet verify": "takes a minute; tests/acceptance/cli/test_verify.py compares the page with the checks",
}
RUN = {"make simulate SEED=17"}  # although it begins like one of those
# What runs until somebody stops it, and the option with which it ends by itself.
ENDLESS = {"conquiet worker": "--until-idle"}
PAGES_WITH_SHELL = [page for page in PAGES if blocks(page, "bash", "console")]


@dataclass(frozen=True)
class Step:
    place: str
    command: str
    output: str | None  # as shown; None if the block shows none

    @property
    def reason(self) -> str | None:
        """Why it does not run."""
        if self.command in RUN:
            return None
        return next((reason for begin, reason in NOT_RUN.items() if _begins(self.command, begin)), None)


def _begins(command: str, begin: str) -> bool:
    words = begin.split()
    return shlex.split(command)[: len(words)] == words


def steps(block: Block) -> Iterator[Step]:
    """The commands of a block: every line of `bash`, the lines of `console` that begin with a prompt."""
    lines = block.text.splitlines()
    if block.language == "bash":
        for number, line in enumerate(lines, block.line + 1):
            if command := line.partition(" #")[0].strip():
                yield Step(f"{name_of(block.page)}:{number}", command, None)
        return
    assert lines[0].startswith("$ "), f"{name_of(block.page)}:{block.line}: a console block begins with $"
    begins = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        place = f"{name_of(block.page)}:{block.line + 1 + begin}"
        yield Step(place, lines[begin][2:], "".join(f"{line}\n" for line in lines[begin + 1 : end]))


def run(step: Step, folder: Path) -> None:
    ending = next((option for begin, option in ENDLESS.items() if _begins(step.command, begin)), "")
    # Make would hand the arguments of this `make test` on to what a page runs.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CONQUIET_", "MAKE")) and name not in ("ARGS", "WORKERS")
    }
    done = subprocess.run(
        ["bash", "-c", f"{step.command} {ending}"],
        cwd=ROOT if step.command.startswith("make ") else folder,
        env={
            **environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",  # so that both outputs are in the order in which they were written
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    refused = step.output is not None and step.output.startswith("conquiet: ")
    assert (done.returncode != 0) == refused, f"{step.place}: {step.command}\n{done.stdout}"
    if step.output is not None:
        # What is said at its end is not shown of a command that somebody stops.
        printed = done.stdout if not ending else done.stdout[: len(step.output)]
        assert normalised(printed) == normalised(step.output), f"{step.place}: {step.command}\n{done.stdout}"


@pytest.mark.parametrize("page", PAGES_WITH_SHELL, ids=name_of)
def test_shell_blocks_run_and_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "python", "bash", "console"):
        if block.language == "python":
            if block.file:
                (tmp_path / block.file).write_text(block.text, encoding="utf-8")
            continue
        for step in steps(block):
            if step.reason is None:
                run(step, tmp_path)


def test_what_does_not_run_is_still_in_the_documentation() -> None:
    commands = [
        step.command
        for page in PAGES_WITH_SHELL
        for block in blocks(page, "bash", "console")
        for step in steps(block)
    ]
    assert [begin for begin in NOT_RUN if not any(_begins(one, begin) for one in commands)] == []
    assert [one for one in RUN if one not in commands] == []


def test_a_block_with_a_prompt_is_a_console_block() -> None:
    """Otherwise its commands and their output would not be checked."""
    hidden = [
        f"{name_of(page)}:{block.line}"
        for page in PAGES
        for block in blocks(page, "", "text", "sh", "shell")
        if block.text.startswith(("$ ", "conquiet ", "make ", "pip "))
    ]
    assert hidden == []


@pytest.mark.parametrize(
    ("command", "output", "complaint"),
    [
        ("false", None, "page:1: false"),
        ("echo one", "two\n", "page:1: echo one"),
        ("echo one", "one\ntwo\n", "page:1: echo one"),
        ("no-such-command-here", "", "not found"),
    ],
)
def test_the_check_notices(command: str, output: str | None, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=complaint):
        run(Step("page:1", command, output), tmp_path)


def test_times_and_ids_need_not_be_the_same(tmp_path: Path) -> None:
    run(Step("page:1", "echo done in 3.7 s", "done in 0.2 s\n"), tmp_path)
    run(
        Step(
            "page:1", "python -c 'import uuid; print(uuid.uuid4())'", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6\n"
        ),
        tmp_path,
    )
