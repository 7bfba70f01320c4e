"""The ids that jobs get where none is given."""

from __future__ import annotations

import os
import time

__all__ = ["new_ids"]


def new_ids(count: int) -> list[str]:
    """UUIDs that begin with the time (version 7): ids that grow keep a database's index of them compact."""
    moment = f"{time.time_ns() // 1_000_000:012x}"
    begin = f"{moment[:8]}-{moment[8:]}-7"
    # Randomness is drawn once for all: 20 digits for each, of which 19 are used.
    digits = os.urandom(10 * count).hex()
    return [
        f"{begin}{digits[n : n + 3]}-{_VARIANTS[digits[n + 3]]}{digits[n + 4 : n + 7]}-{digits[n + 7 : n + 19]}"
        for n in range(0, 20 * count, 20)
    ]


_VARIANTS = {
    f"{digit:x}": f"{digit & 3 | 8:x}" for digit in range(16)
}  # the two bits that every UUID has there
