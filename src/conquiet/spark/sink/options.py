"""The options of `format("conquiet")` for writing, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conquiet.errors import AccessProblem, ConquietError, JobConfigError, QueueConfigError
from conquiet.redaction import misread_url, redact_dsn

__all__ = ["JobOptions", "StreamOptions", "parsed"]

_BOTH = ("sinkId", "batchId", "stagingSeconds", "journalSeconds")
_STREAM = ("url", "stream", *_BOTH)
_JOBS = ("dsn", "queue", "maxRetries", *_BOTH)
_SPARKS_OWN = ("checkpointLocation", "queryName", "path", "outputMode")  # Spark passes these to every sink
_DAY = 86_400
_BATCHES = 2**53  # a time in milliseconds is a usual number; Lua in Redis compares numbers up to this exactly


@dataclass(frozen=True)
class _Options:
    """The options of both sinks. Times are in seconds.

    `sink_id` and `batch_id` identify a batch: writing the same batch again adds nothing.
    """

    sink_id: str | None
    batch_id: int | None
    staging_seconds: int
    journal_seconds: int


@dataclass(frozen=True)
class StreamOptions(_Options):
    """The target is the Redis stream `stream` at `url`."""

    url: str = field(repr=False)
    stream: str


@dataclass(frozen=True)
class JobOptions(_Options):
    """The target is `queue` of the job store at `dsn`."""

    dsn: str = field(repr=False)
    queue: str
    max_retries: int


def parsed(options: Mapping[str, str], *, streaming: bool) -> StreamOptions | JobOptions:
    """Parse the options of a sink: either `url` and `stream`, or `dsn` and `queue`."""
    given = {name.lower(): value for name, value in options.items()}
    for_stream = bool({"url", "stream"} & set(given))
    for_jobs = bool({"dsn", "queue"} & set(given))
    if for_stream == for_jobs:
        raise QueueConfigError(
            'format("conquiet") writes to a Redis stream, with the options url and stream, or to a job store, with '
            f"the options dsn and queue: {'give one pair, not both' if for_stream else 'give one pair'}"
        )
    names, refusal = (_STREAM, QueueConfigError) if for_stream else (_JOBS, JobConfigError)
    reader = _Reader(given, refusal)
    reader.refuse_unknown(names)
    sink_id, batch_id = reader.name("sinkId"), reader.number("batchId", None, 0, _BATCHES)
    if streaming and batch_id is not None:
        raise refusal("option batchId is for batch writes: in a streaming query Spark counts the batches")
    if not streaming and (sink_id is None) != (batch_id is None):
        raise refusal("a batch write that can be repeated safely needs both options, sinkId and batchId")
    both = (
        sink_id,
        batch_id,
        reader.seconds("stagingSeconds", _DAY),
        reader.seconds("journalSeconds", 7 * _DAY),
    )
    if for_stream:
        return StreamOptions(*both, reader.required("url"), reader.required("stream"))
    dsn = _checked_dsn(reader.required("dsn"))
    max_retries = reader.number("maxRetries", 3, 0)
    assert max_retries is not None
    return JobOptions(*both, dsn, reader.required("queue"), max_retries)


def _checked_dsn(dsn: str) -> str:
    if misread := misread_url(dsn):
        raise JobConfigError(
            f"{redact_dsn(dsn)!r} is not a usable URL of a job store: {misread}",
            problem=AccessProblem.ADDRESS,
        )
    scheme, _, rest = dsn.partition("://")
    if scheme == "memory":
        raise JobConfigError(
            "memory:// holds jobs in one process, but Spark writes from many: use postgresql://…, or "
            "sqlite:////absolute/path.db on a local master"
        )
    if scheme == "sqlite" and not rest.startswith("//"):
        raise JobConfigError(
            f"{redact_dsn(dsn)!r} is a relative path, and Spark's processes may run in other folders: use "
            "sqlite:////absolute/path.db, with four slashes"
        )
    return dsn


class _Reader:
    def __init__(self, given: Mapping[str, str], refusal: type[ConquietError]) -> None:
        self._given = given
        self._refusal = refusal

    def refuse_unknown(self, names: tuple[str, ...]) -> None:
        known = {name.lower() for name in (*names, *_SPARKS_OWN)}
        unknown = sorted(set(self._given) - known)
        if unknown:
            raise self._refusal(
                f'format("conquiet") has no option {", ".join(unknown)} for this sink; there are: {", ".join(names)}'
            )

    def required(self, name: str) -> str:
        value = self._given.get(name.lower())
        if not value:
            raise self._refusal(f'format("conquiet") needs the option {name}: .option("{name}", …)')
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._refusal(f"option {name} is not valid Unicode: it contains a lone surrogate") from None
        return value

    def name(self, name: str) -> str | None:
        text = self._given.get(name.lower())
        if text is not None and not (0 < len(text) <= 200 and text.isprintable()):
            raise self._refusal(f"option {name} must be 1 to 200 printable characters, not {text[:60]!r}")
        return text

    def seconds(self, name: str, default: int) -> int:
        value = self.number(name, default, 1)
        assert value is not None
        return value

    def number(self, name: str, default: int | None, at_least: int, below: int = 2**31) -> int | None:
        text = self._given.get(name.lower())
        if text is None:
            return default
        if not (text.isascii() and text.isdigit()):
            raise self._refusal(f"option {name} must be a whole number of at least {at_least}, not {text!r}")
        if len(text) > 20 or not at_least <= int(text) < below:
            raise self._refusal(
                f"option {name} must be a whole number of at least {at_least} and less than {below}, not {text[:30]}"
            )
        return int(text)
