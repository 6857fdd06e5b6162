"""Jobs of `tsumugi up` for the tests of the whole system, and what a job may leave behind."""
import json
import os
import signal
import subprocess
from pathlib import Path

from checks import ROOT
from processes import living

TSUMUGI = os.environ.get("TSUMUGI") or str(ROOT / "target/release/tsumugi")


def tsumugi(*words, **options):
    """Runs the program; gives the finished process."""
    return subprocess.run([TSUMUGI, *map(str, words)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=options.pop("timeout", 120),
                          check=False, **options)


def mounts_with(text):
    """Mount points that contain a text."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return [line.split()[4] for line in file if text in line.split()[4]]


def processes_with(text):
    """{process: command line} of the living processes whose command line contains a text."""
    lines = {pid: b" ".join(words).decode(errors="replace") for pid, words in living().items()}
    return {pid: line for pid, line in lines.items() if text in line and pid != os.getpid()}


class Job:
    """A job with its directory and its backing files below the working directory."""

    def __init__(self, name, nodes=3, size="32M"):
        self.base = Path.cwd() / "run"
        self.name = name
        self.devices = Path.cwd() / f"devices-{name}"
        self.words = ["up", "--local", nodes, "--job", name, "--dir", self.base, "--size", size,
                      "--device-dir", self.devices]
        self.place = ["--job", name, "--dir", self.base]

    def up(self, *words, **options):
        """Brings it up; gives the finished process."""
        return tsumugi(*self.words, *words, **options)

    def start_up(self):
        """Starts `up`."""
        return subprocess.Popen([TSUMUGI, *map(str, self.words)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def down(self, deadline="20s"):
        """Takes it down; gives the finished process."""
        return tsumugi("down", *self.place, "--deadline", deadline)

    def status(self):
        """(exit status, what `status --json` says or None)."""
        done = tsumugi("status", *self.place, "--json")
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None

    def leftovers(self):
        """What it left behind, in words."""
        directory = str(self.base / self.name)
        left = [f"mount {path}" for path in mounts_with(directory)]
        left += [f"process {pid}: {words}" for pid, words in processes_with(directory).items()]
        left += [f"directory {path}" for path in (self.base / self.name, self.devices)
                 if os.path.lexists(path)]
        return left


def kill_at_end(*names):
    """Takes jobs down when the test ends or is ended."""
    def undo(number=None, _frame=None):
        for name in names:
            Job(name).down("5s")
        if number is not None:
            os._exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, undo)
    return undo
