"""The effect core: logic is written once, as flows, and driven on threads, on asyncio or in virtual time."""

from conquiet.flow.asyncio_driver import run_async
from conquiet.flow.contexts import call_in
from conquiet.flow.crew import Crew, all_end
from conquiet.flow.effects import (
    Beside,
    Call,
    Cancellation,
    Cancelled,
    Child,
    Effect,
    Flow,
    Kept,
    Signal,
    Sleep,
    join,
    kept,
    shielded,
)
from conquiet.flow.isolation import Fence, ThreadCalls, current_fence, describe
from conquiet.flow.process import ProcessCalls
from conquiet.flow.steps import Steps, unknown_effect
from conquiet.flow.thread_driver import run
from conquiet.flow.threads import THREADS, Threads

__all__ = [
    "THREADS",
    "Beside",
    "Call",
    "Cancellation",
    "Cancelled",
    "Child",
    "Crew",
    "Effect",
    "Fence",
    "Flow",
    "Kept",
    "ProcessCalls",
    "Signal",
    "Sleep",
    "Steps",
    "ThreadCalls",
    "Threads",
    "all_end",
    "call_in",
    "current_fence",
    "describe",
    "join",
    "kept",
    "run",
    "run_async",
    "shielded",
    "unknown_effect",
]
