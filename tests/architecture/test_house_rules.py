"""Rules about the text of the project itself."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = {".git", ".venv", ".venv-bench", "build", "dist", "out", "__pycache__", ".hypothesis"}
BUILT |= {".pytest_cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache"}
SOURCES = sorted((ROOT / "src").rglob("*.py"))

# Written in pieces, so that this file does not match itself.
REGISTRIES = re.compile(
    r"pypi\."
    + "org|python"
    + r"hosted\.|registry\."
    + r"npmjs|deb\."
    + r"debian|repo1?\."
    + r"maven|docker\."
    + "io"
)
MACHINE_PATHS = re.compile(r"(?<![\w.*<])/(work|root|home/[a-z][\w-]*|Users/\w+)" + "/")
PASSWORDS = re.compile(
    r"(?i)\b\w*(password|passwd|secret_key|api_?key|access_?token)\w*['\"]?\s*[=:]\s*['\"](?P<value>[^'\"\s{}$<>*%]{4,})['\"]"
    r"|[a-z+]+://[^\s/:@'\"{}<>]*:(?P<url_value>[^\s/@'\"{}<>*]+)@"
)
ABOUT_PASSWORDS = {"tests/unit/test_errors.py"}  # its subject is text with passwords in it
INVENTED = ("secret", "s3cret", "hunter2", "wrong", "password", "pass", "pw")  # plainly not real


def project_files() -> list[Path]:
    """The files that git tracks or would track; outside a checkout, every file except build products."""
    try:
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        names = [ROOT / name for name in listing.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [path for path in ROOT.rglob("*") if not BUILT.intersection(path.relative_to(ROOT).parts)]
    return sorted(path for path in names if path.is_file())


def lines(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    for path in project_files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for match in pattern.finditer(line):
                yield f"{path.relative_to(ROOT)}:{number}: {match[0]}", match


def test_the_rules_see_the_project() -> None:
    names = {str(path.relative_to(ROOT)) for path in project_files()}
    assert {"pyproject.toml", "src/conquiet/__init__.py", "requirements/core.txt"} <= names


def test_no_file_names_a_package_registry() -> None:
    assert [where for where, _ in lines(REGISTRIES)] == []


def test_no_file_holds_a_path_of_somebodys_machine() -> None:
    assert [where for where, _ in lines(MACHINE_PATHS)] == []


def test_no_file_holds_a_password() -> None:
    found = [
        where
        for where, match in lines(PASSWORDS)
        if not (match["value"] or match["url_value"]).startswith(INVENTED)
        and where.split(":")[0] not in ABOUT_PASSWORDS
    ]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (REGISTRIES, "--index-url https://pypi." + "org/simple"),
        (REGISTRIES, "https://files.python" + "hosted.org/packages"),
        (MACHINE_PATHS, 'open("/home/' + 'anna/notes")'),
        (MACHINE_PATHS, "cd /root" + "/project"),
        (PASSWORDS, "db_password" + ' = "correct-horse"'),
        (PASSWORDS, "postgresql://" + "app:correct-horse@db/prod"),
    ],
)
def test_the_patterns_find_what_they_look_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


def test_source_files_stay_small() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: size for name, size in sizes.items() if size >= 400} == {}


def test_folders_stay_small() -> None:
    """A folder that holds more than sixteen modules has more than one subject."""
    sizes: dict[str, int] = {}
    for path in SOURCES:
        if path.stem != "__init__":
            folder = str(path.parent.relative_to(ROOT))
            sizes[folder] = sizes.get(folder, 0) + 1
    assert {folder: size for folder, size in sizes.items() if size > 16} == {}


def test_no_module_is_a_catch_all() -> None:
    allowed = {"src/conquiet/task/mixins/utils.py"}  # this name comes from the document it implements
    names = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.stem in {"utils", "helpers", "common", "manager"}
    }
    assert names - allowed == set()


# Stored or received data is never executed and never decides what is imported.
MAKES_CODE = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "joblib", "yaml"}
MAKES_CODE |= {
    "eval()",
    "exec()",
    "compile()",
    "__import__()",
    "read_pickle()",
    "load_extension()",
    "system()",
    "popen()",
}
SHELLS = {"sh", "bash", "dash", "ksh", "zsh"}
IMPORTS_BY_NAME = {"import_module()", "run_path()", "run_module()", "spec_from_file_location()"}
MAY_IMPORT_BY_NAME = {
    "src/conquiet/cli/targets.py",  # what the user names on the command line: `conquiet worker package.module:app`
    "src/conquiet/connectors/__init__.py",  # a fixed table of its own modules
    "src/conquiet/lazy.py",  # a fixed table in the package that uses it
    "src/conquiet/flow/child.py",  # the handler's own module, named by the parent process
}


def made_of_data(source: str) -> set[str]:
    """What in `source` could turn data into code: imported modules and called functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").split(".")[0], *(f"{alias.name}()" for alias in node.names)}
        elif isinstance(node, ast.List | ast.Tuple):
            words = {str(word.value) for word in node.elts if isinstance(word, ast.Constant)}
            if {word.rpartition("/")[2] for word in words} & SHELLS:
                found |= {"system()"}
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            owner = getattr(getattr(called, "value", None), "id", "")
            if (name, owner) in (("compile", "re"), ("system", "platform")):
                continue
            found |= {f"{name}()"}
            if any(keyword.arg in ("shell", "allow_pickle") for keyword in node.keywords):
                found |= {"system()"}
    return found & (MAKES_CODE | IMPORTS_BY_NAME)


def test_no_code_is_made_from_data() -> None:
    """No pickle, eval, exec or shell. Imports by a computed name only in the files listed above."""
    found = {str(path.relative_to(ROOT)): made_of_data(path.read_text()) for path in SOURCES}
    assert {name: bad for name, bad in found.items() if bad & MAKES_CODE} == {}
    assert {name for name, bad in found.items() if bad & IMPORTS_BY_NAME} == MAY_IMPORT_BY_NAME


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import multiprocessing, marshal as m",
        "eval('1')",
        "builtins.exec(x)",
        "from builtins import eval as e",
        "__import__(name)",
        "importlib.import_module(name)",
        "from importlib import import_module as load",
        "compile(text, 'x', 'exec')",
        "subprocess.run(x, shell=True)",
        "subprocess.run(['/bin/sh', '-c', x])",
        "os.execvp('env', ('env', 'bash', '-c', x))",
        "os.system(x)",
        "numpy.load(x, allow_pickle=True)",
        "pandas.read_pickle(x)",
    ],
)
def test_code_made_from_data_would_be_found(source: str) -> None:
    assert made_of_data(source)


def test_no_name_of_a_front_door_is_the_name_of_a_module_behind_it() -> None:
    """Names are imported on first use there: importing the module would replace the name of the same spelling."""
    taken = []
    for path in SOURCES:
        if path.name == "__init__.py" and "__getattr__" in path.read_text():
            modules = {one.stem for one in path.parent.iterdir()}
            public = importlib.import_module(".".join(path.parent.relative_to(ROOT / "src").parts)).__all__
            taken += [f"{path.parent.relative_to(ROOT)}: {name}" for name in public if name in modules]
    assert taken == []


def test_importing_the_package_imports_no_client() -> None:
    heavy = "redis psycopg pyspark pyarrow pandas numpy sqlalchemy starlette prometheus_client opentelemetry typer"
    code = f"import sys, conquiet; print(*sorted(set({heavy.split()!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


def test_the_installer_is_pinned_alike_in_both_locks() -> None:
    """`make` installs uv from its own lock first; another version in the core lock would replace it mid-run."""
    pins = [
        re.findall(r"^uv==\S+", (ROOT / "requirements" / lock).read_text(), re.MULTILINE)
        for lock in ("uv.txt", "core.txt")
    ]
    assert pins[0]
    assert pins[0] == pins[1]


@pytest.mark.parametrize("lock", ["core.txt", "spark.txt", "uv.txt", "bench.txt"])
def test_every_requirement_in_a_lock_has_a_hash(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    blocks = re.split(r"^(?=[a-zA-Z])", text, flags=re.MULTILINE)[1:]
    assert blocks
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    """A test that cannot run is a fault to fix. (The ledger's own tests contain such tests.)"""
    pattern = re.compile(r"pytest\.(skip|importorskip|xfail)\(|mark\.(skip|skipif|xfail)\b")
    tests = set((ROOT / "tests").rglob("*.py")) - {
        Path(__file__),
        ROOT / "tests/architecture/test_clause_ledger.py",
    }
    assert [str(path.relative_to(ROOT)) for path in sorted(tests) if pattern.search(path.read_text())] == []
