"""What the engine makes of exceptions that others raise, without ever changing them.

An exception is the object of whoever raised it: it may be frozen, shared, or have attributes that raise. The engine reads
of it what every exception has, writes its text cut and without credentials, and shows a stand-in where an exception would
show credentials in a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from conquiet.errors import ConquietError
from conquiet.redaction import error_text, is_raised_by_user, redact, shown_lines, traceback_text
from conquiet.task.exceptions import ExceptionCategory, RedactedError, TransactionException

__all__ = [
    "copy_for",
    "cut",
    "guarded",
    "is_a",
    "presentable",
    "text_of",
    "told_to",
    "traceback_of",
    "type_name",
]

_MOST_TEXT = 1_024
_MOST_SHOWN = (
    8_192  # characters of one exception in a traceback, and the most that are searched for credentials
)
_MOST_EXCEPTIONS = 1_000  # of one tree of causes and groups

# Read below the class of an exception, which may override them with anything.
_ARGS: Any = BaseException.__dict__["args"]
_CAUSE: Any = BaseException.__dict__["__cause__"]
_CONTEXT: Any = BaseException.__dict__["__context__"]
_SUPPRESSED: Any = BaseException.__dict__["__suppress_context__"]
_TRACEBACK: Any = BaseException.__dict__["__traceback__"]
_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]


def is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return whether `error` is of one of these classes. (`isinstance` reads `__class__`, which may raise.)"""
    return issubclass(type(error), kinds)


def text_of(error: BaseException) -> str:
    """Return the text of `error` without credentials, at most 1 KiB. Its __str__ is user code and may fail."""
    return cut(error_text(error, _MOST_TEXT))


def type_name(error: BaseException) -> str:
    """Return the class name of `error` as OpenTelemetry expects it: with its module, unless it is built in."""
    if isinstance(error, RedactedError):
        return error.error_type
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def traceback_of(failure: BaseException, redactor: Callable[[str], str]) -> str | None:
    """Return the traceback of `failure` for a log, at most 8 KiB: of what the task raised, not of our words for it.

    An error of ours that no code of the user raised, such as a time limit, says all in its text: it has none.
    """
    cause = _CAUSE.__get__(failure)
    shown = failure if cause is None or is_raised_by_user(failure) else cause
    if isinstance(shown, ConquietError) and not is_raised_by_user(shown):
        return None
    return shown_lines(redactor(traceback_text(presentable(shown), _MOST_SHOWN))).rstrip("\n")


def cut(text: str) -> str:
    """Return at most 1 KiB of `text`, encodable as UTF-8."""
    return text[:_MOST_TEXT].encode("utf-8", "replace")[:_MOST_TEXT].decode("utf-8", "ignore")


def guarded(redactor: Callable[[str], str]) -> Callable[[str], str]:
    """Wrap the user's `redactor`: if it fails, the text is withheld."""

    def redacted(text: str) -> str:
        try:
            clean: object = redactor(text)
            return clean if isinstance(clean, str) else f"(withheld: redact() gave {type(clean).__name__})"
        except Exception as error:  # noqa: BLE001 - user code; the failure must still be reported
            return f"(withheld: redact() raised {type(error).__name__})"

    return redacted


def told_to(transaction_id: str, error: TransactionException) -> TransactionException:
    """Return what handlers are told of an exception that a task raised for this transaction.

    That is the exception itself if it has an id, and nothing in it is missing or must not be shown. Otherwise it is a copy:
    a task may raise one object for many transactions.
    """
    category, own_id = _read(error, "category"), _read(error, "transaction_id")
    complete = type(category) is ExceptionCategory and isinstance(own_id, str)
    return error if complete and presentable(error) is error else copy_for(transaction_id, error)


def copy_for(transaction_id: str, error: TransactionException) -> TransactionException:
    """Return a copy of `error`, complete, with the id of its transaction, and presentable.

    It is of the same class, unless that is impossible or would show credentials.
    """
    category = _category(_read(error, "category"))
    own_id = _read(error, "transaction_id")
    known = {"category": category, "transaction_id": own_id if isinstance(own_id, str) else transaction_id}
    copy = _copied(error, known)
    if copy is None or _shows_credentials(copy):
        copy = TransactionException(error_text(error, _MOST_SHOWN), category, known["transaction_id"])
        copy.__notes__ = _clean_notes(error)
    below = {id(one): presentable(one) for one in _below(error)}
    _link(copy, error, below)
    return copy


def _category(value: Any) -> ExceptionCategory:
    try:
        return ExceptionCategory(value)  # also from its name as text
    except ValueError:
        return ExceptionCategory.SYSTEM


def _copied(error: TransactionException, known: dict[str, Any]) -> TransactionException | None:
    kind = type(error)
    try:
        copy: TransactionException = BaseException.__new__(kind, *map(_clean, _ARGS.__get__(error)))
        own = object.__getattribute__(error, "__dict__")
        kept = {name: _clean(value) for name, value in own.items()}
        # With a list of notes from the start, one can be added even if the class is frozen.
        object.__getattribute__(copy, "__dict__").update({**kept, **known, "__notes__": _clean_notes(error)})
        complete = all(getattr(copy, name) is value for name, value in known.items())
    except Exception:  # noqa: BLE001 - a class of the user's that cannot be copied; another one takes its place
        return None
    return copy if complete else None


def _clean(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if len(value) > _MOST_SHOWN:
        raise ValueError("too long to be searched")
    return redact(value)


def _clean_notes(one: BaseException) -> list[str]:
    return [error_text(note, _MOST_SHOWN) for note in _notes(one)]


def presentable(error: BaseException) -> BaseException:
    """Return `error` itself if a traceback of it shows no credentials; otherwise a stand-in that shows none.

    The stand-in has the same causes. Those that lead to no credentials stay as they are.
    """
    tree, parents = _tree(error)
    if len(tree) == 1 and not _shows_credentials(error):
        return error
    replaced = [key for key, one in tree.items() if _shows_credentials(one)]
    is_whole = len(tree) < _MOST_EXCEPTIONS
    if not is_whole:
        replaced = list(tree)
    stand_ins: dict[int, BaseException] = {}
    while replaced:
        key = replaced.pop()
        if key not in stand_ins:
            stand_ins[key] = _stand_in(tree[key])
            replaced += parents.get(key, ())
    for key, stand_in in stand_ins.items():
        _link(stand_in, tree[key], stand_ins, is_whole)
    return stand_ins.get(id(error), error)


def _tree(error: BaseException) -> tuple[dict[int, BaseException], dict[int, list[int]]]:
    """Return `error` and what led to it, by id, and for each of them those that it led to."""
    tree: dict[int, BaseException] = {}
    parents: dict[int, list[int]] = {}
    waiting = [error]
    while waiting and len(tree) < _MOST_EXCEPTIONS:
        one = waiting.pop()
        if id(one) in tree:
            continue
        tree[id(one)] = one
        for below in _below(one):
            parents.setdefault(id(below), []).append(id(one))
            waiting.append(below)
    return tree, parents


def _below(one: BaseException) -> Iterator[BaseException]:
    for link in (_CAUSE, _CONTEXT):
        if (below := link.__get__(one)) is not None:
            yield below
    if is_a(one, BaseExceptionGroup):
        yield from _MEMBERS.__get__(one)


def _shows_credentials(one: BaseException) -> bool:
    """Return whether a traceback or a log line of `one` alone could show credentials, or is too long to tell."""
    return any(len(text) > _MOST_SHOWN or redact(text) != text for text in _texts(one))


def _texts(one: BaseException) -> Iterator[str]:
    yield _written(one, str)
    if not is_a(one, BaseExceptionGroup):  # its repr is that of its members, which are examined themselves
        yield _written(one, repr)
    if is_a(one, SyntaxError):
        yield _written(_read(one, "text"), str)
    yield from _notes(one)


def _written(value: object, write: Callable[[Any], str]) -> str:
    try:
        return write(value)
    except Exception:  # noqa: BLE001 - user code, which shows nothing in a traceback either
        return ""


def _notes(one: BaseException) -> list[str]:
    notes = _read(one, "__notes__")
    if notes is None:
        return []
    if not isinstance(notes, list | tuple):
        return [_written(notes, repr)]
    return [_written(note, str) for note in notes[:_MOST_EXCEPTIONS]]


def _read(one: BaseException, name: str) -> Any:
    try:
        return getattr(one, name, None)
    except Exception:  # noqa: BLE001 - user code: a property or __getattr__ that raises
        return None


def _stand_in(one: BaseException) -> BaseException:
    stand_in = RedactedError(type_name(one), error_text(one, _MOST_SHOWN))
    stand_in.original = one
    stand_in.__notes__ = _clean_notes(one)
    if is_a(one, BaseExceptionGroup):
        for member in _MEMBERS.__get__(one)[:_MOST_EXCEPTIONS]:
            stand_in.add_note(f"{type(member).__qualname__}: {error_text(member, _MOST_TEXT)}")
    return stand_in


def _link(
    shown: BaseException, one: BaseException, stand_ins: dict[int, BaseException], is_whole: bool = True
) -> None:
    """Give `shown` the traceback of `one`, and its cause and context, or what stands in for them."""
    cause, context = _CAUSE.__get__(one), _CONTEXT.__get__(one)
    _CAUSE.__set__(shown, stand_ins.get(id(cause), cause if is_whole else None))
    _CONTEXT.__set__(shown, stand_ins.get(id(context), context if is_whole else None))
    _SUPPRESSED.__set__(shown, _SUPPRESSED.__get__(one))
    _TRACEBACK.__set__(shown, _TRACEBACK.__get__(one))
