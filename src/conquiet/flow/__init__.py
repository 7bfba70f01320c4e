"""The effect core: logic is written once, as flows, and driven on threads, on asyncio or in virtual time."""

from conquiet.flow.asyncio_driver import run_async
from conquiet.flow.contexts import call_in
from conquiet.flow.crew import Crew, all_end
from conquiet.flow.deferred import deferred_kind, refuse_deferred
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
    original,
    shielded,
)
from conquiet.flow.isolation import THREAD_CALLS, Fence, ThreadCalls, current_fence, describe
from conquiet.flow.places import Places
from conquiet.flow.process import ProcessCalls
from conquiet.flow.steps import Steps, unknown_effect
from conquiet.flow.thread_driver import run
from conquiet.flow.threads import THREADS, Threads

__all__ = [
    "THREADS",
    "THREAD_CALLS",
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
    "Places",
    "ProcessCalls",
    "Signal",
    "Sleep",
    "Steps",
    "ThreadCalls",
    "Threads",
    "all_end",
    "call_in",
    "current_fence",
    "deferred_kind",
    "describe",
    "join",
    "kept",
    "original",
    "refuse_deferred",
    "run",
    "run_async",
    "shielded",
    "unknown_effect",
]
