"""The import contract of the rooms, as a contract type of import-linter.

The contract types of import-linter list what is forbidden. This one lists what is allowed, in tables of pyproject.toml, and
keeps them tight: an unused permission also breaks the contract.

rooms     A row is a room: a folder or a root file of the package, or a folder inside a room that is itself a room
          ("reconcile.spark"). Inside a room everything may import everything. From other rooms, only the doors in its row
          may be imported: a room itself (its `__init__`), or a module given by its path ("queue.wire").
shared    Doors that every room may import, except the shared rooms themselves.
packages  Third-party packages, by the room, folder or module that may import them; rows add up along the path.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class TableField(fields.Field[dict[str, list[str]]]):
    """A TOML table of lists of names."""

    def parse(self, raw_data: Any) -> dict[str, list[str]]:
        if not isinstance(raw_data, dict) or not all(isinstance(row, list) for row in raw_data.values()):
            raise fields.ValidationError("Expected a table whose values are lists of names.")
        return raw_data


class RoomsContract(Contract):
    type_name = "rooms"

    shared = fields.ListField(subfield=fields.StringField())
    rooms = TableField()
    packages = TableField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        broken = sorted(_Judge(self, graph, self.session_options["root_packages"][0]).complaints())
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(f"- {line}", bold=False)
        output.new_line()
        output.print(
            "What each room may import is declared in pyproject.toml, under tool.importlinter.contracts."
        )


class _Judge:
    """Checks every import once, and records which permissions are used."""

    def __init__(self, contract: RoomsContract, graph: ImportGraph, root: str) -> None:
        self._shared: list[str] = list(contract.shared)  # type: ignore[call-overload]
        self._rooms: dict[str, list[str]] = contract.rooms  # type: ignore[assignment]
        self._packages: dict[str, list[str]] = contract.packages  # type: ignore[assignment]
        self._graph = graph
        self._root = root
        self._used: set[tuple[str, str, str]] = set()  # table, row, name

    def complaints(self) -> Iterator[str]:
        ours = sorted(module for module in self._graph.modules if module.split(".")[0] == self._root)
        for module in ours:
            if self._room(module) is None:
                yield f"{module} is in no room: it has no row in the table"
                continue
            for imported in sorted(self._graph.find_modules_directly_imported_by(module)):
                if not self._allowed(module, imported):
                    yield f"{module} -> {imported} ({self._lines(module, imported)})"
        yield from self._unused()

    def _allowed(self, importer: str, imported: str) -> bool:
        if imported.split(".")[0] != self._root:
            return self._allowed_package(importer, imported.split(".")[0])
        room, door = self._room(importer), self._path(imported)
        if room is None or room == self._room(imported):
            return room is not None
        if door in self._rooms[room]:
            self._used.add(("rooms", room, door))
            return True
        if door in self._shared and room not in self._shared and room != "__init__":
            self._used.add(("shared", "", door))
            return True
        return False

    def _allowed_package(self, importer: str, package: str) -> bool:
        if package in sys.stdlib_module_names:
            return True
        path = self._path(importer).split(".")
        for length in range(len(path), 0, -1):  # the most specific row counts as used
            row = ".".join(path[:length])
            if package in self._packages.get(row, ()):
                self._used.add(("packages", row, package))
                return True
        return False

    def _unused(self) -> Iterator[str]:
        for name, table in (("rooms", self._rooms), ("packages", self._packages)):
            for row, allowed in table.items():
                for one in allowed:
                    if (name, row, one) not in self._used:
                        yield f"{name}: {row} may import {one}, but nothing does: remove it from the row"
        for one in self._shared:
            if ("shared", "", one) not in self._used:
                yield f"shared: nothing imports {one}: remove it"

    def _path(self, module: str) -> str:
        """`conquiet.jobs.worker` as in the tables, `jobs.worker`; the file of the package itself is `__init__`."""
        return module.partition(".")[2] or "__init__"

    def _room(self, module: str) -> str | None:
        """The room of a module: the row with the longest matching path."""
        path = self._path(module).split(".")
        for length in range(len(path), 0, -1):
            if (row := ".".join(path[:length])) in self._rooms:
                return row
        return None

    def _lines(self, importer: str, imported: str) -> str:
        details = self._graph.get_import_details(importer=importer, imported=imported)
        return ", ".join(f"l.{number}" for number in sorted({detail["line_number"] for detail in details}))
