"""Child processes that never outlive the demo.

Each runs in a session of its own, so that only the demo receives the terminal's Ctrl-C, and then ends its
children in order. SIGINT, SIGTERM and SIGHUP become the exception Interrupted, once; during the cleanup
they are ignored.
"""
import contextlib
import os
import signal
import subprocess

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILL_AFTER_SECONDS = 10

_running = set()


class Interrupted(BaseException):
    """The user wants the demo to end."""


class Failed(Exception):
    """A step failed; the message names the step and the reason."""


def catch_signals():
    """Turns the first signal into Interrupted."""
    def interrupt(number, _frame):
        ignore_signals()
        raise Interrupted(signal.Signals(number).name)
    for number in SIGNALS:
        signal.signal(number, interrupt)


def ignore_signals():
    """Ignores signals from now on, so that the cleanup is not interrupted."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def start(words, **options):
    """Starts a program. Signals are blocked until it is in the list of children, so that none is lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        child = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL,
                                 start_new_session=True, preexec_fn=_as_usual, **options)
        _running.add(child)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return child


def _as_usual():
    """Restores the default signal handlers in the child."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def finish(child, name, timeout=None):
    """Waits for a program. Returns its output, or raises Failed with its errors."""
    try:
        output, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} is not done after {timeout} s") from None
    _running.discard(child)
    if child.returncode:
        said = (errors or output or b"").decode(errors="replace").strip()
        raise Failed(f"{name} ended with {child.returncode}: {said}")
    return output


def run(words, timeout=300, **options):
    """Runs a program to its end. Returns its output."""
    child = start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    return finish(child, " ".join(str(word) for word in words[:3]), timeout)


def end_all():
    """Ends the remaining programs: asks first, then kills."""
    for number, seconds in ((signal.SIGTERM, KILL_AFTER_SECONDS), (signal.SIGKILL, 5)):
        for child in _running:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
        for child in _running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
    _running.clear()
