"""Policies as plain data: conversion to and from dicts and JSON, and checks of their fields."""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Self, get_type_hints

from conquiet.errors import PolicyError, redact

__all__ = ["PolicyData"]


class PolicyData:
    """The base class of policies: converts to and from plain data, and checks fields."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            item.name: value.to_dict() if isinstance(value, PolicyData) else value
            for item in fields(self)  # type: ignore[arg-type]
            for value in (getattr(self, item.name),)
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create the policy from `data`. Missing keys get their defaults, unknown ones are refused by name."""
        if not isinstance(data, Mapping):
            raise PolicyError(f"{cls.__name__} is created from a mapping, not {type(data).__name__}")
        types = get_type_hints(cls)
        known = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        for key in data:
            if key not in known:
                raise PolicyError(
                    f"{cls.__name__} has no field {_shown(key)}; it has: {', '.join(sorted(known))}"
                )
        return cls(
            **{
                key: types[key].from_dict(value) if is_dataclass(types[key]) else value
                for key, value in data.items()
            }
        )

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise PolicyError(f"{cls.__name__}: not JSON: {error}") from error
        return cls.from_dict(data)

    def _check_count(self, name: str, *, optional: bool = False, at_least: int = 1) -> None:
        value = getattr(self, name)
        if not (optional and value is None) and (type(value) is not int or value < at_least):
            raise PolicyError(
                f"{type(self).__name__}.{name} must be an int of at least {at_least}, not {_shown(value)}"
            )

    def _check_number(self, name: str, at_least: float) -> None:
        value = getattr(self, name)
        if not _is_number(value) or value < at_least:
            raise PolicyError(
                f"{type(self).__name__}.{name} must be a number of at least {at_least}, not {_shown(value)}"
            )

    def _check_timeout(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and (not _is_number(value) or value <= 0):
            raise PolicyError(
                f"{type(self).__name__}.{name} must be None or a number of seconds above 0, not {_shown(value)}"
            )

    def _check_bool(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            raise PolicyError(f"{type(self).__name__}.{name} must be True or False, not {_shown(value)}")

    def _check_policy(self, name: str, kind: type) -> None:
        value = getattr(self, name)
        if not isinstance(value, kind):
            raise PolicyError(f"{type(self).__name__}.{name} must be a {kind.__name__}, not {_shown(value)}")


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    )  # false for NaN too


def _shown(value: object) -> str:
    """Format a refused value for a message: short, and without secrets in case it is a DSN by mistake."""
    return redact(reprlib.repr(value)) if isinstance(value, str | int | float) else type(value).__name__
