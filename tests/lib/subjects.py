"""Shared code of tests of unions by subjects: each subject has layers and a mount point of its own."""
import contextlib
import errno
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from unions import lives, mount_ours, run, server_of

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS = []
LARGE_BYTES = 24 << 20


def subject(function):
    """Registers a subject; it gets a lower layer, an upper and work directory and a mount point."""
    SUBJECTS.append(function)
    return function


class Place:
    """The directories of one subject."""

    def __init__(self, base):
        self.lower, self.upper = base / "lower", base / "upper"
        self.work, self.at = base / "work", base / "mount"
        for path in (self.lower, self.upper, self.work, self.at):
            path.mkdir(parents=True)
        (self.lower / "directory").mkdir()
        for index in range(20):
            (self.lower / "directory" / f"{index}").write_bytes(bytes([index]) * 5000)
        (self.lower / "file").write_bytes(b"lower" * 1000)
        (self.lower / "large").write_bytes(os.urandom(1 << 20) * (LARGE_BYTES >> 20))

    def layers(self):
        return [self.lower], self.upper, self.work

    def waiting(self):
        """Returns copies without a name."""
        return os.listdir(self.work / "tsumugi/pending")


@contextlib.contextmanager
def fails(error):
    """Checks that the block fails with this error."""
    try:
        yield
    except OSError as found:
        assert found.errno == error, f"{errno.errorcode[found.errno]}, not {errno.errorcode[error]}"
    else:
        raise AssertionError(f"did not fail with {errno.errorcode[error]}")


def until(condition, what, seconds=10):
    """Waits for a condition that must become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.005)


def kill_server(place):
    """Kills the server of a union."""
    server = server_of(place.at)
    os.kill(server, signal.SIGKILL)
    until(lambda: not lives(server), "the server's end")
    run("umount", "-l", place.at)


def killed(place, more):
    """Kills the server of a union and mounts anew."""
    kill_server(place)
    mount_ours(*place.layers(), place.at, more)


def main():
    """Runs the subjects, or those that are given, and prints those that failed."""
    needed = run(ROOT.parent / "tools/require", "fuse", "root", check=False)
    if needed.returncode != 0:
        print(needed.stdout.strip())
        sys.exit(needed.returncode)
    # A test that a signal ends leaves nothing mounted.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    names = sys.argv[1:]
    # Some subjects act as another user, who must be able to reach their directory.
    scratch = Path.cwd().parent
    scratch.chmod(scratch.stat().st_mode | 0o011)
    failed = []
    for function in SUBJECTS:
        if names and function.__name__ not in names:
            continue
        base = Path.cwd() / function.__name__
        start = time.monotonic()
        try:
            function(Place(base))
            print(f"{function.__name__}: {time.monotonic() - start:.1f} s")
        except Exception:
            traceback.print_exc()
            failed.append(function.__name__)
            run("umount", "-l", base / "mount", check=False)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
