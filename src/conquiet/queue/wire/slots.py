"""Names of keys that belong to a stream: a script may use several keys only if a cluster has them in one slot."""

from __future__ import annotations

from binascii import crc_hqx
from itertools import count

__all__ = ["slot_of", "tagged"]

_SLOTS = 16_384


def slot_of(key: str) -> int:
    """The slot of a key: of its hash tag, the text between the first { and the next }, or of the whole key without one."""
    return crc_hqx((_tag(key) or key).encode(), 0) % _SLOTS


def tagged(stream: str) -> str:
    """`stream` as a part of another key, so that every key in which it is the first part with a brace has its slot."""
    if _tag(stream):
        return stream
    if "}" not in stream:
        return f"{{{stream}}}"
    # Such a name cannot be a tag. A number takes its place: about every 16,384th is in the same slot.
    slot = slot_of(stream)
    number = next(n for n in count() if crc_hqx(b"%d" % n, 0) % _SLOTS == slot)
    return f"{{{number}}}{stream}"


def _tag(key: str) -> str:
    return key.partition("{")[2].partition("}")[0] if "}" in key.partition("{")[2] else ""
