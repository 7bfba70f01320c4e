"""The command as a whole: help, completion, exit codes, a quick start, errors without a traceback."""

from __future__ import annotations

import json
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from conquiet.cli import main
from conquiet.cli.command import app
from conquiet.cli.exits import MEANINGS
from tests.acceptance.cli.command import Shell

ROOT = Path(__file__).parents[3]


def verbs() -> list[tuple[str, ...]]:
    import typer

    def below(command: object, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        commands = getattr(command, "commands", None)
        if not commands:
            return [path]
        return [verb for name, found in commands.items() for verb in below(found, (*path, name))]

    return below(typer.main.get_command(app), ())


def test_every_verb_has_json_and_examples_of_itself() -> None:
    """In one process: the help of each verb is what Typer prints."""
    code = (
        "import sys\nfrom conquiet.cli.command import run\n"
        "for verb in sys.argv[1:]:\n    print('=== ' + verb)\n    run([*verb.split(), '--help'])"
    )
    names = [" ".join(verb) for verb in verbs()]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    pages = dict(page.split("\n", 1) for page in done.stdout.split("=== ")[1:])
    assert len(pages) == len(names) > 10
    for name, page in pages.items():
        assert re.search(r"^  --json ", page, re.MULTILINE), page
        assert re.search(r"^  --debug ", page, re.MULTILINE), page
        examples = page.split("Examples:\n")[1].splitlines()
        assert [line for line in examples if line and not line.startswith(f"    conquiet {name}")] == []


def test_help_tells_the_exit_codes_and_so_does_the_documentation(shell: Shell) -> None:
    done = shell("--help")
    assert done.code == 0
    table = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for code, meaning in MEANINGS.items():
        assert re.search(rf"^ +{code.value} +{re.escape(meaning)}$", done.out, re.MULTILINE)
        assert f"| {code.value} | {meaning} |" in table.replace("`", "")
    for verb in verbs():
        assert f"conquiet {' '.join(verb)}" in table, f"docs/cli.md does not tell of {verb}"


def test_help_imports_no_client(tmp_path: Path) -> None:
    heavy = (
        "pyspark psycopg redis sqlalchemy pandas pyarrow numpy prometheus_client opentelemetry starlette rich"
    )
    code = (
        "import sys\nfrom conquiet.cli.command import run\nassert run(['--help']) == 0\n"
        f"print('imported:', *sorted(set({heavy.split()!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "imported:"


def test_without_typer_one_line_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['typer'] = None; from conquiet.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        4,
        'conquiet: the command line needs typer and rich: pip install "conquiet[cli]"\n',
    )


def test_the_installed_command_is_this_one() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert pkgutil.resolve_name(scripts["conquiet"]) is main


def test_version_and_completion(shell: Shell) -> None:
    assert shell("--version").out.strip()
    asked = {"_CONQUIET_COMPLETE": "complete_bash", "COMP_WORDS": "conquiet jo", "COMP_CWORD": "1"}
    assert shell(**asked).out.split() == ["jobs"]
    asked |= {"COMP_WORDS": "conquiet jobs list --state F", "COMP_CWORD": "4"}
    assert shell(**asked).out.split() == ["Failed"]


def test_without_a_verb_there_is_help(shell: Shell) -> None:
    alone, group = shell.each("", "jobs")
    assert alone.code == group.code == 2
    assert "Exit codes:" in alone.out
    assert "retry" in group.out
    # A reader that closes the pipe early causes no error message.
    command = " ".join(map(shlex.quote, shell.command("--help")))
    piped = subprocess.run(
        ["sh", "-c", f"{command} | true"], capture_output=True, text=True, cwd=shell.folder
    )
    assert piped.stderr == ""


def test_wrong_words_are_told_in_one_line(shell: Shell) -> None:
    shell("jbos").refused(2, "No such command 'jbos'", "'jobs'", "conquiet --help")
    shell.refuses(
        {
            "jobs list --bogus": (2, "--bogus", "conquiet jobs list --help"),
            "jobs list --limit 0": (2, "--limit"),
            "jobs show": (2, "ID"),
            "stream tail a --count x": (2, "--count"),
        }
    )


def test_errors_as_json_and_as_a_traceback_without_the_password(shell: Shell) -> None:
    bad = "postgresql://app:hunter2x@127.0.0.1:1/shop"
    as_json, traced, blank, bracket = shell.each(
        f"jobs stats --json --dsn {bad}",
        f"jobs stats --debug --dsn {bad}",
        "jobs stats --dsn 'postgresql://app:hunter2 and a blank@127.0.0.1:1/shop'",
        "jobs stats --dsn postgresql://app:hunter2@[::1/shop",
    )
    assert as_json.code == traced.code == 3
    told = json.loads(as_json.err)
    assert (told["exit_code"], told["kind"]) == (3, "StoreUnavailableError")
    assert "Traceback" in traced.err
    for unreadable in (blank, bracket):
        unreadable.refused(2, "--dsn")
    said = as_json.err + traced.err + blank.err + bracket.err
    assert "hunter2" not in said
    assert "blank" not in said


def test_an_error_nobody_expected_is_one_line_too(tmp_path: Path) -> None:
    code = (
        "import sys, conquiet.jobs\n"
        "def broken(*_, **__): raise RuntimeError('out of luck with password=hunter2')\n"
        "conquiet.jobs.migration_plan = broken\n"
        "from conquiet.cli.command import run\nsys.exit(run(['migrate', '--dsn', 'sqlite:///jobs.db']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        70,
        "conquiet: RuntimeError: out of luck with password=*** (unexpected: run it again with --debug)\n",
    )
