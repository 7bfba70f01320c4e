from __future__ import annotations

import os
import signal

from conquiet.signals import stop_on_sigterm


def test_several_blocks_are_all_stopped_and_the_first_handler_comes_back_last() -> None:
    seen: list[str] = []
    own = signal.signal(signal.SIGTERM, lambda *_: seen.append("own"))
    try:
        first, second = stop_on_sigterm(lambda: seen.append("a")), stop_on_sigterm(lambda: seen.append("b"))
        first.__enter__()
        second.__enter__()
        os.kill(os.getpid(), signal.SIGTERM)
        first.__exit__(None, None, None)  # not in reverse order: two tasks of one loop end in any order
        os.kill(os.getpid(), signal.SIGTERM)
        second.__exit__(None, None, None)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, own)
    assert seen == ["a", "b", "b", "own"]
