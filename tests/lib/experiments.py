"""Shared code of tests of experiments on layers: samples, and an experiment's leftovers."""
import contextlib
import os
import sqlite3
import time
from pathlib import Path

GONE_SECONDS = 40


def samples(results):
    """Returns values by name and condition; none while there are none."""
    values = {}
    if not (results / "results.sqlite").exists():
        return values
    try:
        with sqlite3.connect(results / "results.sqlite") as database:
            for name, condition, value in database.execute(
                    "SELECT name, condition, value FROM run JOIN sample ON run.id = sample.run"):
                values.setdefault((name, condition), []).append(value)
    except sqlite3.OperationalError:
        return {}
    return values


def errors(results):
    """Returns the errors of runs."""
    with sqlite3.connect(results / "results.sqlite") as database:
        return [row[0] for row in database.execute("SELECT error FROM run WHERE error NOT NULL")]


def left(data):
    """Returns an experiment's leftovers below its directory: files, processes, mounts, loop devices."""
    where = os.fsencode(str(data.resolve()))
    found = [str(path) for path in data.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            mounts = (process / "mountinfo").read_bytes()
        except OSError:
            continue
        if where in words and b"reap" not in words.split(b"\0"):
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
        # In any mount namespace.
        found += [line.decode() for line in mounts.splitlines() if where in line]
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found += [text for text in [backing.read_text()] if where.decode() in text]
    return found


def gone(data):
    """Waits until nothing is left."""
    deadline = time.monotonic() + GONE_SECONDS
    while left(data):
        assert time.monotonic() < deadline, left(data)
        time.sleep(0.2)
