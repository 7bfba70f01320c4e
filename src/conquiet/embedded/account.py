"""The account that a server runs under: PostgreSQL refuses root, so root uses another one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conquiet.errors import ServerError

__all__ = ["Account", "account_for"]

# Inside the namespace root appears as `nobody`, outside it is still root: files still belong to root, and folders
# that only root may enter stay accessible.
_NAMESPACE = ("unshare", "--user", "--map-user=65534", "--map-group=65534", "--")
_OTHER_USERS = ("postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """How to start a program; by default as the current user."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None
    note: str = ""

    @property
    def ids(self) -> tuple[str, str]:
        """User and group for `starter`."""
        return ("-", "-") if self.uid is None else (str(self.uid), str(self.gid))

    def take_over(self, path: str | Path) -> None:
        """Give one of our private files or folders to this account; parent folders are not changed."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def account_for(program: Path, base_folder: Path) -> Account:
    """An account, not root, that can run `program` and enter `base_folder`."""
    if os.geteuid() != 0:
        return Account()
    namespace = Account(prefix=_NAMESPACE, note="in a user namespace")
    refusals = []
    if shutil.which(_NAMESPACE[0]) is None:
        refusals.append("user namespace: there is no program unshare")
    elif refusal := _refusal(namespace, program, base_folder):
        refusals.append(f"user namespace: {refusal}")
    else:
        return namespace
    for name in _OTHER_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        account = Account(uid=entry.pw_uid, gid=entry.pw_gid, note=f"as user {name}")
        if not (refusal := _refusal(account, program, base_folder)):
            return account
        refusals.append(f"user {name}: {refusal}")
    raise ServerError(
        f"PostgreSQL refuses to run as root, and no other account works here ({'; '.join(refusals)}). "
        "Run this as a normal user, or set TMPDIR to a folder every user may enter, such as /tmp"
    )


def _refusal(account: Account, program: Path, base_folder: Path) -> str:
    """Why the account cannot be used; empty if it can."""
    # Where POSIX has it: PATH may not lead to it, and must not choose another.
    entered = _run(account, shutil.which("test", path=os.defpath) or "test", "-x", str(base_folder))
    if entered == "status 1":
        return f"it may not enter {base_folder}"
    return entered or _run(account, str(program), "--version")


def _run(account: Account, *command: str) -> str:
    """Why the command failed; empty if it did not."""
    try:
        result = subprocess.run(
            [*account.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            timeout=20,
            encoding="utf-8",
            errors="replace",
            user=account.uid,
            group=account.gid,
            extra_groups=None if account.uid is None else [],
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "" if result.returncode == 0 else result.stdout.strip() or f"status {result.returncode}"
