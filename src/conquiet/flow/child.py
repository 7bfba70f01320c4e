"""The child process of `conquiet.flow.process`: imports one function, then answers calls until its parent ends."""

from __future__ import annotations

import importlib
import json
import os
import queue
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from conquiet.flow.process import read_frame, write_frame
from conquiet.redaction import error_text, traceback_text

_MOST_TEXT = 65_536  # characters of a message or a traceback


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    target = read_frame(connection)
    if target is None:
        return
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests), daemon=True).start()
    try:
        fn = _load_target(**json.loads(target))
    except BaseException as error:  # the import failed: report it to the parent and end
        write_frame(connection, json.dumps({"error": _described(error)}).encode())
        return
    write_frame(connection, b"{}")
    while True:
        request = requests.get()
        try:
            answer = json.dumps({"value": fn(*json.loads(request)["args"])}, allow_nan=False).encode()
        except BaseException as error:  # anything the function raises is reported to the parent
            answer = json.dumps({"error": _described(error)}).encode()
        write_frame(connection, answer)


def _receive(connection: socket.socket, requests: queue.SimpleQueue[bytes]) -> None:
    """Read requests. Runs on its own thread, so that the end of the parent is noticed during a call."""
    try:
        while (request := read_frame(connection)) is not None:
            requests.put(request)
    finally:
        os._exit(0)


def _load_target(fn: dict[str, Any], wrap: dict[str, Any] | None) -> Callable[..., Any]:
    target = _load(**fn)
    return target if wrap is None else partial(_load(**wrap), target)


def _load(module: str, name: str, main_file: str | None) -> Callable[..., Any]:
    found: Any
    if main_file is None:
        found = importlib.import_module(module)
    else:
        namespace = runpy.run_path(main_file, run_name="__conquiet_main__")
        first, _, name = name.partition(".")
        found = namespace[first]
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _described(error: BaseException) -> dict[str, str]:
    return {
        "error_type": type(error).__qualname__,
        "message": error_text(error, _MOST_TEXT),
        "remote_traceback": traceback_text(error, _MOST_TEXT),
    }


if __name__ == "__main__":
    main()
