"""A file system on a disk with a power cut afterwards (crates/fuse/examples/power_cut.rs)."""
import contextlib
import os
import subprocess
import time
from pathlib import Path

from unions import run

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
    "btrfs": ["mkfs.btrfs", "-q", "-f", "-K"],
}
WAIT_SECONDS = 20


def example(name):
    """Returns an example program of ours, or None if it was not built; `NAME=PROGRAM` chooses another."""
    root = Path(__file__).resolve().parent.parent.parent
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    kinds = (os.environ.get("BUILD_PROFILE", "release"), "release", "debug", "ci")
    places = [target / kind / "examples" / name for kind in kinds]
    if name.upper() in os.environ:
        places.insert(0, Path(os.environ[name.upper()]))
    return next((place for place in places if place.exists()), None)


def program():
    """Returns the program that serves the disk, or None if it was not built."""
    return example("power_cut")


def detach(loop):
    """Detaches a loop device; the kernel may hold it for a moment."""
    for _ in range(100):
        if run("losetup", "-d", loop, check=False).returncode == 0:
            return
        time.sleep(0.05)


def unmount(at):
    """Unmounts; after a failure a union on top may still be about to end."""
    for _ in range(100):
        if run("umount", at, check=False).returncode == 0:
            return
        time.sleep(0.05)
    run("umount", at)


@contextlib.contextmanager
def mounted(image, at, options=""):
    """Mounts the file system of an image, on a loop device, for a block."""
    loop = run("losetup", "-f", "--show", image).stdout.strip()
    try:
        run("mount", *(["-o", options] if options else []), loop, at)
        try:
            yield at
        finally:
            unmount(at)
    finally:
        detach(loop)


class Disk:
    """A base image and the log of the writes to a copy of it."""

    def __init__(self, directory, kind="ext4", size_bytes=96 << 20):
        self.directory = Path(directory)
        self.base, self.log = self.directory / "base", self.directory / "log"
        self.front = self.directory / "front"
        self.front.mkdir()
        with self.base.open("wb") as file:
            file.truncate(size_bytes)
        run(*MAKE[kind], self.base)

    @contextlib.contextmanager
    def powered(self):
        """Serves the disk; yields the file to put a loop device on."""
        server = subprocess.Popen([program(), "serve", self.front, self.base, self.log])
        try:
            deadline = time.monotonic() + WAIT_SECONDS
            while not (self.front / "disk").exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the disk is not served")
                time.sleep(0.02)
            yield self.front / "disk"
        finally:
            run("umount", self.front, check=False)
            try:
                server.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def mark(self, text):
        """Notes an acknowledgement in the log."""
        with open(self.front / "mark", "wb", buffering=0) as file:
            file.write(f"{text}\n".encode())

    def entries(self):
        """Returns the number of entries of the log."""
        last = run(program(), "show", self.log).stdout.splitlines()[-1]
        return int(last.split()[0])

    def cut(self, at, seed):
        """Returns an image as after a loss of power at entry `at`, and the marks that it must keep."""
        image = self.directory / "image"
        marks = run(program(), "replay", self.base, self.log, image, at, seed).stdout.split("\n")
        return image, [mark for mark in marks if mark]
