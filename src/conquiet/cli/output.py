"""The output of a command: the result on standard output, as text or JSON; everything else on standard error."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from conquiet.cli.exits import Exit, advice, exit_of, without_secrets
from conquiet.cli.settings import Settings
from conquiet.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Session", "session"]


class Session:
    """One run of the command: its output format and its settings."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.json = False
        self.debug = False
        self.settings = Settings()

    def result(self, data: Any, *texts: Any) -> None:
        """Print `data` as one line of JSON, or `texts` (strings or Rich objects such as tables) for people."""
        if self.json:
            print(json.dumps(data, ensure_ascii=False), flush=True)
            return
        for text in texts:
            if isinstance(text, str):
                print(printable(text), flush=True)
            else:
                # Text has lines of its own, which are not broken; a table fits the terminal.
                self._console().print(text, soft_wrap=hasattr(text, "plain"))

    def note(self, text: str) -> None:
        """Print `text` on standard error, unless the output is JSON."""
        if not self.json:
            print(printable(text), file=sys.stderr, flush=True)

    def confirmed(self, flag: str, question: str, yes: bool) -> bool:
        """Ask before something that cannot be undone; without a terminal it must be confirmed by --yes."""
        import typer

        if yes:
            return True
        if self.json or not sys.stdin.isatty():
            raise SettingsError(f"{flag} would {question}. Add --yes to confirm")
        return bool(typer.confirm(f"{question}?", err=True))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for name in columns:
            table.add_column(name, overflow="fold")
        for row in rows:
            # Text, not markup: Rich must not interpret what a payload or an error contains.
            table.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
        return table

    def failed(self, error: BaseException) -> Exit:
        """Report `error` in one line on standard error, and return the exit code."""
        used, code = self.settings.used, exit_of(error)
        if self.debug and not isinstance(error, KeyboardInterrupt):
            trace = "".join(traceback.format_exception(error))
            print(without_secrets(trace, used), file=sys.stderr, end="")
        text = "interrupted" if isinstance(error, KeyboardInterrupt) else advice(error, used)
        self.complain(without_secrets(text, used), code, type(error).__name__)
        return code

    def complain(self, text: str, code: int, kind: str) -> None:
        if self.json:
            print(json.dumps({"error": text, "kind": kind, "exit_code": int(code)}), file=sys.stderr)
        else:
            print(f"conquiet: {printable(text)}", file=sys.stderr)

    def _console(self) -> Console:
        from rich.console import Console

        # Output to a pipe is not cut to the width of a terminal.
        return Console(highlight=False, width=None if sys.stdout.isatty() else 400)


def printable(text: str) -> str:
    """`text` with control characters escaped, except line breaks: a payload must not move the terminal's cursor."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


session = Session()  # a process runs one command at a time
