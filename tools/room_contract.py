"""The import contract of the rooms, as a contract type of import-linter.

Its own contract types name what is forbidden and refuse modules that do not exist. This one names what is
allowed, per room, in two tables of pyproject.toml: nothing has to be added when a room appears, and a new room
without a row breaks the contract.
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

    def validate(self) -> None:
        known = set(self.rooms)
        named = {name for row in self.rooms.values() for name in row}.union(self.shared)
        named |= {row.split(".")[0] for row in self.packages}
        if named - known:
            unknown = ", ".join(sorted(named - known))
            raise ValueError(f"No row in tool.importlinter.contracts.rooms for: {unknown}")

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        broken = sorted(self._broken(graph))
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["broken"]:
            output.print_error(f"- {line}", bold=False)
        output.new_line()
        output.print(
            "What each room may import is declared in pyproject.toml, under tool.importlinter.contracts."
        )

    def _broken(self, graph: ImportGraph) -> Iterator[str]:
        root = self.session_options["root_packages"][0]
        ours = {module for module in graph.modules if module.split(".")[0] == root}
        for room in sorted({self._room(module) for module in ours} - set(self.rooms)):
            yield f"{root}.{room} is not a room: it has no row in the table"
        for importer in ours:
            for imported in graph.find_modules_directly_imported_by(importer):
                if not self._allowed(importer, imported, inside=imported in ours):
                    lines = sorted(
                        {
                            detail["line_number"]
                            for detail in graph.get_import_details(importer=importer, imported=imported)
                        }
                    )
                    where = ", ".join(f"l.{number}" for number in lines)
                    yield f"{importer} -> {imported} ({where})"

    def _allowed(self, importer: str, imported: str, *, inside: bool) -> bool:
        room = self._room(importer)
        if inside:
            target = self._room(imported)
            foundation = () if room in self.shared or room == "__init__" else self.shared
            return target == room or target in foundation or target in self._row(self.rooms, importer)
        package = imported.split(".")[0]
        return package in sys.stdlib_module_names or package in self._row(self.packages, importer)

    @staticmethod
    def _room(module: str) -> str:
        """`conquiet.jobs.postgres` lies in the room `jobs`; the package's own file is `__init__`."""
        return [*module.split("."), "__init__"][1]

    @staticmethod
    def _row(table: dict[str, list[str]], module: str) -> set[str]:
        """Everything that the rows for this module and the packages around it allow."""
        path = module.split(".")[1:] or ["__init__"]
        rows = [table.get(".".join(path[:length]), []) for length in range(1, len(path) + 1)]
        return {name for row in rows for name in row}
