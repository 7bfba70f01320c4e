"""Python processes of the suite start with compiled modules.

The suite starts thousands of Python processes, and most of what a short one does is importing. Where bytecode is not kept,
as in many container images, each of them compiles every module that it imports: pandas takes three times as long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

STARTUP = Path(__file__).with_name("interpreter")


def start_compiled(environment: MutableMapping[str, str]) -> None:
    """Let this process keep bytecode, and the processes that inherit `environment`."""
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    if str(STARTUP) not in places:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STARTUP), *places]))
