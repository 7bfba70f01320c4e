"""How long a campaign runs: in full under `make campaign`, at a twentieth of its size otherwise."""

from __future__ import annotations

import math
import os

FULL = os.environ.get("CONQUIET_CAMPAIGN") == "1"


def campaign_size(full: int) -> int:
    """The number of repetitions for a campaign of `full`, at least one."""
    return full if FULL else max(1, math.ceil(full / 20))
