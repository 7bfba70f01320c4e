#!/usr/bin/env python3
"""Create the virtual environments of this project from its hashed locks.

    python3 tools/bootstrap.py core          .venv with the core lock and conquiet itself
    python3 tools/bootstrap.py core spark    ... and Spark, Arrow and Java
    python3 tools/bootstrap.py bench         .venv-bench with the peers that the benchmarks measure against

Runs on the system's python3 with only the standard library, and in the syntax of Python 3.6, so that an old interpreter
reaches the message that says what to do. Stamps named after the contents of the lock (`.venv/.core-<hash>`) record what is
installed: they are removed before an installation begins and written when it is complete, so an interrupted installation
is repeated, and a second run has nothing to do.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOG = os.path.join(ROOT, "build", "bootstrap.log")
OLDEST = (3, 11)

LOCKS = {  # layer -> (lock file, name for messages)
    "core": ("requirements/core.txt", "core packages"),
    "spark": ("requirements/spark.txt", "Spark packages (about 500 MB)"),
    "bench": ("requirements/bench.txt", "benchmark peers"),
}

# Environment variables that would install packages elsewhere or change what is installed. Settings for where packages
# come from (index, mirror, proxy, certificates, cache) are kept.
REDIRECTIONS = frozenset(
    "PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX __PYVENV_LAUNCHER__ "
    "PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_PYTHON PIP_REQUIREMENT PIP_CONSTRAINT PIP_EDITABLE PIP_NO_DEPS "
    "PIP_DRY_RUN PIP_REQUIRE_HASHES PIP_ONLY_BINARY PIP_NO_BINARY PIP_IGNORE_INSTALLED PIP_REQUIRE_VIRTUALENV "
    "UV_PYTHON UV_SYSTEM_PYTHON UV_TARGET UV_PREFIX UV_CONSTRAINT UV_OVERRIDE UV_EXCLUDE_NEWER UV_NO_BUILD "
    "UV_NO_BINARY UV_REQUIRE_HASHES UV_NO_VERIFY_HASHES UV_PROJECT_ENVIRONMENT UV_BUILD_CONSTRAINT".split()
)


class Stop(Exception):
    """Ends the program with one line: what is missing, and the command that fixes it."""


class Environment:
    """One virtual environment and the layers installed in it."""

    def __init__(self, folder, layers, project):
        self.folder = folder
        self.path = os.path.join(ROOT, folder)
        self.python = os.path.join(self.path, "bin", "python")
        self.made = os.path.join(self.path, ".made")  # written last: an incomplete environment has none
        self.project = project
        self.layers = list(layers)

    def stamps(self):
        stamps = [self.stamp(layer, LOCKS[layer][0]) for layer in self.layers]
        return stamps + ([self.stamp("project", "pyproject.toml")] if self.project else [])

    def stamp(self, name, source):
        with open(os.path.join(ROOT, source), "rb") as file:
            return os.path.join(self.path, ".%s-%s" % (name, hashlib.sha256(file.read()).hexdigest()[:16]))

    def old_stamps(self):
        names = ("project",) + tuple(LOCKS)
        return [
            os.path.join(self.path, entry)
            for entry in (os.listdir(self.path) if os.path.isdir(self.path) else [])
            if entry.startswith(tuple("." + name + "-" for name in names))
        ]

    def ready(self, interpreter):
        return self.usable(interpreter) and all(map(os.path.exists, self.stamps()))

    def usable(self, interpreter):
        """Whether it is complete and its interpreter still runs with the same version."""
        try:
            with open(self.made) as file:
                made_with = file.read()
        except OSError:
            return False
        if interpreter is not None and made_with != describe(interpreter):
            return False  # another Python was requested
        # The interpreter may have been removed or upgraded.
        return run_quietly([self.python, "-IS", "-c", VERSION]).strip() == made_with.split()[0]


VERSION = "import sys; print('.'.join(map(str, sys.version_info[:2])))"


def main(argv):
    parser = argparse.ArgumentParser(description="Create the virtual environments of this project.")
    parser.add_argument("layers", nargs="+", choices=sorted(LOCKS))
    parser.add_argument(
        "--chosen", action="store_true", help="this Python was requested: create .venv again with it"
    )
    parser.add_argument("--again", default="make test", help="the command to name in messages")
    options = parser.parse_args(argv)
    interpreter = base_interpreter()
    asked_for = interpreter if options.chosen else None

    core = [layer for layer in ("core", "spark") if layer in options.layers]
    environments = [Environment(".venv", core, True)] if core else []
    if "bench" in options.layers:
        environments.append(Environment(".venv-bench", ["bench"], False))
    if all(environment.ready(asked_for) for environment in environments):
        return
    with one_at_a_time():
        for environment in environments:
            if not environment.ready(asked_for):
                complete(environment, interpreter, asked_for, options.again)


def complete(environment, interpreter, asked_for, again):
    """Create the environment if there is no usable one, then install what it lacks."""
    if not environment.usable(asked_for):
        check_interpreter(again)
        remove_broken(environment)
        with step("%s with Python %s" % (environment.folder, sys.version.split()[0])):
            run([interpreter, "-I", "-m", "venv", environment.path])
            with open(environment.made, "w") as file:
                file.write(describe(interpreter))
    # An installed layer is kept in the list: otherwise the exact installation below would remove it.
    kept = [layer for layer in LOCKS if os.path.exists(environment.stamp(layer, LOCKS[layer][0]))]
    missing = [layer for layer in environment.layers if layer not in kept]
    environment.layers = [layer for layer in LOCKS if layer in kept or layer in missing]
    for stamp in environment.old_stamps():
        os.unlink(stamp)
    tool = uv(environment)
    if missing:
        names = " and ".join(LOCKS[layer][1] for layer in missing)
        locks = [part for layer in environment.layers for part in ("-r", LOCKS[layer][0])]
        pip_install = ["--require-hashes"] + locks
        # `sync`, not `install`: it also removes what a changed lock no longer names.
        uv_install = ["sync", "--require-hashes"] + locks[1::2]
        install(environment, names, tool, uv_install, pip_install)
    if environment.project:
        editable = ["--no-build-isolation", "--no-deps", "-e", "."]
        install(environment, "conquiet itself, editable", tool, ["install"] + editable, editable)
    for stamp in environment.stamps():
        open(stamp, "w").close()


def uv(environment):
    """The path of uv in this environment, installed if necessary; None if it is not available and pip must be used."""
    if os.environ.get("CONQUIET_INSTALLER") == "pip":
        return None
    path = os.path.join(environment.path, "bin", "uv")
    if run_quietly([path, "--version"]):
        return path
    try:
        with step("uv, the fast installer"):
            run(pip(environment) + ["--require-hashes", "--no-deps", "-r", "requirements/uv.txt"])
        if run_quietly([path, "--version"]):
            return path
    except subprocess.CalledProcessError:
        pass
    say("uv is not available here; continuing with pip, which is slower")
    return None


def install(environment, names, tool, uv_arguments, pip_arguments):
    if tool is not None:
        command = [tool, "pip", uv_arguments[0], "-q", "--python", environment.python] + uv_arguments[1:]
        try:
            with step(names):
                run_uv(command)
            return
        except subprocess.CalledProcessError as error:
            say("uv failed: %s" % cause(error))
            say("trying pip, which has its own settings for indexes and proxies")
    try:
        with step(names + ", with pip"):
            run(pip(environment) + pip_arguments)
    except subprocess.CalledProcessError as error:
        raise Stop(
            "could not install %s: %s. All output: less build/bootstrap.log; "
            "behind a mirror: export PIP_INDEX_URL=<its URL> and run again"
            % (names, cause(error).rstrip("."))
        )


def run_uv(command):
    """uv uses its own certificates; behind a proxy with other certificates, those of the system are needed."""
    try:
        run(command)
    except subprocess.CalledProcessError as error:
        if "certificate" not in error.output or "UV_SYSTEM_CERTS" in os.environ:
            raise
        run(command, UV_SYSTEM_CERTS="1")


def pip(environment):
    options = "-m pip install -q --disable-pip-version-check --no-input".split()
    return [environment.python, "-I"] + options


def check_interpreter(again):
    """Refuse an interpreter that cannot create the environment, with the command that helps."""
    apt = shutil.which("apt-get") is not None
    if sys.version_info[:2] < OLDEST:
        wanted = "%d.%d" % OLDEST
        problem = "Python %s or newer is needed and %s is %s" % (
            wanted,
            sys.executable,
            sys.version.split()[0],
        )
        for minor in range(OLDEST[1] + 9, OLDEST[1] - 1, -1):
            name = "python3.%d" % minor
            if run_quietly(
                [name, "-IS", "-c", VERSION]
            ):  # the shim of a version manager may exist and not run
                raise Stop("%s; run: PYTHON=%s %s" % (problem, name, again))
        if apt:
            package = "python" + wanted
            command = "sudo apt-get install %s %s-venv && PYTHON=%s %s" % (package, package, package, again)
        else:
            command = "PYTHON=<path of a newer python3> " + again
        raise Stop("%s; run: %s" % (problem, command))
    try:
        import ensurepip  # noqa: F401  (Debian ships it in a separate package)
        import venv  # noqa: F401
    except ImportError as error:
        version = "%d.%d" % sys.version_info[:2]
        problem = "%s has no %s module, so it cannot create .venv" % (sys.executable, error.name)
        if apt:
            raise Stop("%s; run: sudo apt-get install python%s-venv && %s" % (problem, version, again))
        raise Stop("%s; run with a complete Python: PYTHON=<its path> %s" % (problem, again))


def remove_broken(environment):
    path = environment.path
    if not os.path.lexists(path):
        return
    made_by_venv = os.path.exists(os.path.join(path, "pyvenv.cfg")) or (
        os.path.isdir(path) and not os.listdir(path)
    )
    if os.path.islink(path) or not made_by_venv:
        name = environment.folder
        raise Stop("%s exists but is not a virtual environment; run: mv %s %s.old" % (name, name, name))
    say("%s is incomplete or of another Python; creating it again" % environment.folder)
    # The order matters if the removal is interrupted: without `.made` the rest is not used as an environment, and while
    # pyvenv.cfg exists it is not mistaken for a folder of the user.
    for entry in sorted(os.listdir(path), key=lambda name: (name != ".made", name == "pyvenv.cfg")):
        item = os.path.join(path, entry)
        if os.path.isdir(item) and not os.path.islink(item):
            shutil.rmtree(item)
        else:
            os.unlink(item)


def base_interpreter():
    """This Python, or its base interpreter if it is in a virtual environment (perhaps our own)."""
    if sys.prefix != sys.base_prefix:
        return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return sys.executable


def describe(interpreter):
    return "%d.%d %s" % (sys.version_info[0], sys.version_info[1], os.path.realpath(interpreter))


@contextlib.contextmanager
def one_at_a_time():
    """Two makes in one checkout take turns; the lock is released when its process ends."""
    os.makedirs(os.path.dirname(LOG), exist_ok=True)
    with open(LOG + ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another make is installing here; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        open(LOG, "w").close()
        yield


def clean_environment():
    return {key: value for key, value in os.environ.items() if key not in REDIRECTIONS}


def run(command, **settings):
    """Run `command` with its output in the log; raises with the output if it fails."""
    with open(LOG, "a") as log:
        log.write("$ %s\n" % " ".join(command))
        log.flush()
        start = log.tell()
        environment = dict(clean_environment(), **settings)
        status = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log).returncode
    if status != 0:
        with open(LOG, errors="replace") as log:
            log.seek(start)
            raise subprocess.CalledProcessError(status, command, log.read())


def run_quietly(command):
    """The output of the command; empty if it cannot run."""
    try:
        return subprocess.check_output(command, env=clean_environment(), stderr=subprocess.DEVNULL).decode()
    except (OSError, subprocess.CalledProcessError):
        return ""


def cause(error):
    """The line of the output with the cause: the last one marked as an error, or the last."""
    lines = [line.strip() for line in error.output.splitlines() if line.strip()]
    marked = [line for line in lines if line.lower().startswith(("error", "cause"))]
    return (marked or lines or ["exit status %d" % error.returncode])[-1]


@contextlib.contextmanager
def step(what):
    """Print one line per step: its name, then the seconds it took."""
    begin = time.monotonic()
    sys.stderr.write("conquiet: %s ... " % what)
    sys.stderr.flush()
    try:
        yield
    except BaseException:
        sys.stderr.write("failed\n")
        raise
    sys.stderr.write("%.1f s\n" % (time.monotonic() - begin))


def say(text):
    sys.stderr.write("conquiet: %s\n" % text)
    sys.stderr.flush()


if __name__ == "__main__":
    # An installer must not continue alone when make is killed: SystemExit makes subprocess.run kill its child.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGHUP, lambda number, frame: sys.exit(128 + number))
    try:
        main(sys.argv[1:])
    except Stop as stop:
        say(str(stop))
        sys.exit(1)
    except subprocess.CalledProcessError as error:
        say("%s failed: %s (all output: less build/bootstrap.log)" % (error.cmd[0], cause(error)))
        sys.exit(1)
    except KeyboardInterrupt:
        say("interrupted; the next make continues from here")
        sys.exit(130)
