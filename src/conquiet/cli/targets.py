"""`package.module:name` on the command line."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from conquiet.errors import SettingsError

__all__ = ["target"]


def target(text: str, what: str) -> Any:
    """The object that `text` names; modules are also found in the current folder."""
    module_name, colon, name = text.partition(":")
    if not colon or not module_name or not name:
        raise SettingsError(f"{what} is given as package.module:name, not {text!r}")
    if (here := os.getcwd()) not in sys.path:  # `python -m` adds it, an installed command does not
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise SettingsError(
                f"there is no module {module_name!r} for {what}: run this in the folder that holds it, or install it"
            ) from error
        raise SettingsError(
            f"{module_name} cannot be imported: it needs {error.name!r}, which is not installed"
        ) from error
    except Exception as error:  # importing runs the module's code
        raise SettingsError(
            f"{module_name} cannot be imported: {type(error).__qualname__}: {error} (--debug shows where)"
        ) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise SettingsError(f"{module_name} has no {name!r} for {what}") from None
    return found
