"""Runs the reading of untrusted files in a child process with bounds on its memory and time.

Headers, pickles and configurations can ask for any amount of both, or overflow the stack of a
library. The child forks, reads, and returns the result through a pipe; every way in which it can
end becomes one Refusal here. Only metadata passes the pipe: a tensor stays a description of where
its bytes lie.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

from models.convert.refusal import Refusal

Result = TypeVar("Result")

MEMORY_BYTES = 3 << 30  # private memory beyond the caller's, mapped files not counted
CPU_SECONDS = 60
RESULT_BYTES = 256 << 20


def bounded(what: str, read: Callable[[], Result], seconds: int | None = None) -> Result:
    """Returns read(), whose result must be picklable, called in a child process.

    `what` names the files in a Refusal. The child may use `seconds` of processor time, by default
    CPU_SECONDS.
    """
    seconds = CPU_SECONDS if seconds is None else seconds
    receiver, sender = os.pipe()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        _run(what, read, seconds, sender)
    os.close(sender)
    try:
        with os.fdopen(receiver, "rb") as pipe:
            answer = pipe.read(RESULT_BYTES + 1)
    finally:
        if sys.exc_info()[0] is not None or len(answer) > RESULT_BYTES:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if len(answer) > RESULT_BYTES:
        raise Refusal(f"{what}: describes more than {RESULT_BYTES >> 20} MiB of names and shapes")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        raise Refusal(f"{what}: takes more than {seconds} s")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV:
        raise Refusal(f"{what}: nests too deeply")
    if status != 0:
        raise Refusal(f"{what}: not readable (the reading process ended with status {status})")
    result = pickle.loads(answer)  # pickled by _run, so of our own classes
    if isinstance(result, Exception):
        raise result
    return result  # type: ignore[no-any-return]


def _held_bytes() -> int:
    """This process's private memory, which a child has from its start: many GB after a training on
    GPUs."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return 0  # not on Linux


def _run(what: str, read: Callable[[], object], seconds: int, sender: int) -> None:
    """The child: never returns."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for kind, bound in (
            (resource.RLIMIT_DATA, _held_bytes() + MEMORY_BYTES),
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (bound, bound))
        answer = _answer(what, read)
        with os.fdopen(sender, "wb") as pipe:
            pipe.write(answer)
        status = 0
    finally:
        os._exit(status)


def _answer(what: str, read: Callable[[], object]) -> bytes:
    """Pickles the result of read(), or the Refusal or OSError that stands for its exception."""
    try:
        return pickle.dumps(read())
    except Refusal as refusal:
        return pickle.dumps(refusal)
    except MemoryError:
        return pickle.dumps(Refusal(f"{what}: needs more than {MEMORY_BYTES >> 20} MiB"))
    except OSError as error:
        return pickle.dumps(OSError(error.errno, error.strerror, error.filename))
    except Exception as error:  # hostile input can provoke any of them
        return pickle.dumps(Refusal(f"{what}: not readable ({type(error).__name__}: {error})"))
