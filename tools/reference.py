"""Writes docs/reference.md from the docstrings of every public name: `python tools/reference.py [--check]`."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
ROOMS = {
    "conquiet": "The app",
    "conquiet.app": "Tasks of the app",
    "conquiet.queue": "Redis Streams queue",
    "conquiet.jobs": "Leased jobs",
    "conquiet.task": "Consumer Engine",
    "conquiet.task.mixins.consumer": "Mixins of the Consumer Engine",
    "conquiet.task.mixins.policies": "Policies of the Consumer Engine",
    "conquiet.task.mixins.utils": "Calls with a time limit and a context",
    "conquiet.task.exceptions": "Exceptions of the Consumer Engine",
    "conquiet.connectors": "Connectors",
    "conquiet.local": "In-process queue",
    "conquiet.coordination": "State shared by processes",
    "conquiet.reconcile": "Reconciliation",
    "conquiet.reconcile.spark": "Reconciliation on Spark",
    "conquiet.reconcile.report": "Analytics and the report",
    "conquiet.spark": "Spark connector",
    "conquiet.embedded": "Private servers",
    "conquiet.verify": "Verification of a server",
    "conquiet.testing": "For tests",
    "conquiet.errors": "Errors",
}
HEAD = """# Reference

Every public name, from the docstrings of the code: `python tools/reference.py` writes this page, and a test fails when it
is out of date. The pages listed in [the README](../README.md#read-on) explain what the parts are for.

"""


def page() -> str:
    parts = [HEAD, *(f"- [`{name}`](#{_anchor(name)}): {title}\n" for name, title in ROOMS.items()), "\n"]
    known: dict[int, str] = {}
    for name, title in ROOMS.items():
        parts += [f"## {name}\n\n{title}.\n\n", *_room(name, known)]
    return "".join(parts).rstrip() + "\n"


def _room(name: str, known: dict[int, str]) -> Iterator[str]:
    module = importlib.import_module(name)
    elsewhere = []
    for public in sorted(module.__all__, key=str.lower):
        thing = getattr(module, public)
        if callable(thing) and known.setdefault(id(thing), name) != name:
            elsewhere.append(f"`{public}` (of `{known[id(thing)]}`)")
            continue
        yield from _entry(public, thing)
    if elsewhere:
        yield f"Also here: {', '.join(elsewhere)}.\n\n"


def _entry(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        yield f"### {name}\n\n"
        if issubclass(thing, BaseException):
            bases = ", ".join(f"`{base.__name__}`" for base in thing.__bases__)
            yield f"{_text(thing)} An error; of: {bases}.\n\n".lstrip()
            return
        if issubclass(thing, enum.Enum):
            yield f"{_text(thing)}\n\n{', '.join(f'`{one.name}`' for one in thing)}\n\n".lstrip()
            return
        if not getattr(thing, "_is_protocol", False):
            yield f"`{name}{_signature(thing)}`\n\n"
        if text := _text(thing):
            yield f"{text}\n\n"
        yield from _members(thing)
    elif callable(thing):
        yield f"### {name}\n\n`{name}{_signature(thing)}`\n\n{_text(thing)}\n\n"
    elif name == "__version__":
        yield f"### {name}\n\nThe version of the package, a `str`.\n\n"  # not its value, so that a release changes one line
    elif isinstance(thing, int | str):
        yield f"### {name}\n\n`{thing!r}`\n\n"
    else:
        yield f"### {name}\n\nA `{type(thing).__name__}`.\n\n"


def _members(kind: type) -> Iterator[str]:
    """Public methods and properties, including those inherited from a base class of conquiet."""
    lines = []
    for name, member in inspect.getmembers_static(kind):
        if name.startswith("_") or not _is_ours(kind, name):
            continue
        if isinstance(member, property):
            text, shown = inspect.getdoc(member), name
        elif inspect.isroutine(member) or isinstance(member, classmethod | staticmethod):
            function = getattr(kind, name)
            text, shown = inspect.getdoc(function), f"{name}{_signature(function)}"
        else:
            continue
        lines.append(f"- `{shown}`{': ' + _inline(text.split(chr(10) * 2)[0]) if text else ''}\n")
    if lines:
        yield "".join(lines) + "\n"


def _is_ours(kind: type, name: str) -> bool:
    return any(name in vars(base) and base.__module__.startswith("conquiet") for base in kind.__mro__)


def _signature(thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(…)"
    kept = [one for one in found.parameters.values() if one.name != "self"]
    text = str(found.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    text = re.sub(r"<(?:[^<>]|<[^<>]*>)* at 0x[0-9a-f]+>|<(?:object|factory)[^>]*>", "…", text)
    text = re.sub(r"(?:[a-z_]+\.)+([A-Z])", r"\1", text).replace("'", "")
    return text if len(text) <= 400 else "(…)"


def _text(thing: Any) -> str:
    text = _own_doc(thing)
    if text.startswith(f"{getattr(thing, '__name__', '')}("):
        return ""  # generated by dataclasses or NamedTuple: repeats the signature
    paragraphs = re.split(r"\n\s*\n", text)
    # Tables and diagrams in docstrings are indented: put them unchanged into a block.
    return "\n\n".join(
        f"```text\n{inspect.cleandoc(one)}\n```" if one.startswith("    ") else _inline(one)
        for one in paragraphs
    )


def _own_doc(thing: Any) -> str:
    """The docstring, but not one that a class inherits from the standard library."""
    if inspect.isclass(thing):
        ours = (base for base in thing.__mro__ if base.__module__.startswith("conquiet"))
        return next((inspect.cleandoc(text) for base in ours if (text := vars(base).get("__doc__"))), "")
    return inspect.getdoc(thing) or ""


def _inline(text: str) -> str:
    return (
        re.sub(r"(?<![`\w])([<>|])", r"\\\1", " ".join(text.split()))
        if "`" not in text
        else " ".join(text.split())
    )


def _anchor(name: str) -> str:
    return name.replace(".", "")


def main() -> int:
    sys.path.insert(0, str(ROOT / "src"))
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("docs/reference.md is out of date: run python tools/reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {text.count(chr(10))} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
