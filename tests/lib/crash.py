"""A union on a file system that is shut down in the middle, as a loss of power would end it.

The file system lies on a loop device. The shutdown ioctl of ext4 and xfs drops everything that is only
in memory, without writing the journal: what is there after the next mount is what was durable. Lower
layers lie elsewhere and survive.
"""
import contextlib
import ctypes
import fcntl
import os
import pickle
import shutil
import signal
import struct
import time
import traceback
from pathlib import Path

import namespaces
import powercut
from unions import TSUMUGI, lives, options_of, run, server_of

# `_IOR('X', 125, __u32)` of both; the flag leaves the journal unwritten.
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, struct.pack("I", 2)
# Commands and options that create and mount the file system, its size, and the user that owns everything. Without
# commits of its own accord; also with the syncs that an ordinary user can do.
NOBODY = 65534
CONDITIONS = {
    "xfs-root": (["mkfs.xfs", "-q", "-f"], "", 300, 0),
    "xfs-user": (["mkfs.xfs", "-q", "-f"], "", 300, NOBODY),
    "ext4-root": (["mkfs.ext4", "-q", "-F", "-b", "4096"], "commit=900", 512, 0),
    "ext4-user": (["mkfs.ext4", "-q", "-F", "-b", "4096"], "commit=900", 512, NOBODY),
    "writeback-root": (["mkfs.ext4", "-q", "-F", "-b", "4096"], "commit=900,data=writeback", 512, 0),
    "writeback-user": (["mkfs.ext4", "-q", "-F", "-b", "4096"], "commit=900,data=writeback", 512, NOBODY),
}
# The same for file systems without the ioctl: the disk forgets the writes since its last flush.
CUT = {"btrfs-root": ("btrfs", 160, 0), "btrfs-user": ("btrfs", 160, NOBODY),
       "ext4-cut": ("ext4", 64, 0), "ext4-cut-user": ("ext4", 64, NOBODY), "xfs-cut": ("xfs", 320, 0)}
WAIT_SECONDS = 30
PLACE = Path("/mnt")


def enter():
    """Goes to a mount namespace of the test's own, in which its directory is at /mnt and any user may
    mount by fusermount3."""
    namespaces.enter("CRASH_NAMESPACE")
    Path("tsumugi").touch()
    os.mknod("fuse", 0o666 | 0o020000, os.makedev(10, 229))
    os.chmod("fuse", 0o666)
    os.chmod(".", 0o755)
    run("mount", "--bind", "fuse", "/dev/fuse")
    run("mount", "--bind", ".", PLACE)
    run("mount", "--bind", TSUMUGI, PLACE / "tsumugi")
    os.chdir(PLACE)


def as_user(uid, act, *arguments):
    """Calls a function in a process of this user, and returns what it returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            answer = pickle.dumps(act(*arguments))
            while answer:
                answer = answer[os.write(write, answer):]
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        data = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise RuntimeError(f"{act.__name__} failed")
    return pickle.loads(data)


class Disk:
    """A file system of one of the conditions."""

    def __init__(self, condition):
        make, self.options, size_mib, self.uid = CONDITIONS[condition]
        self.condition = condition
        self.at = PLACE / f"fs-{condition}"
        self.at.mkdir()
        image = PLACE / f"image-{condition}"
        with image.open("wb") as file:
            file.truncate(size_mib << 20)
        run(*make, image)
        self.loop = run("losetup", "-f", "--show", image).stdout.strip()
        self.mount()
        os.chown(self.at, self.uid, self.uid)

    def mount(self):
        """Mounts it; replays its journal."""
        run("mount", *(["-o", self.options] if self.options else []), self.loop, self.at)

    def end(self):
        """Unmounts it and gives the device back."""
        self.unmount()
        run("losetup", "-d", self.loop)
        (PLACE / f"image-{self.condition}").unlink()

    def begin(self):
        """Begins a row."""

    def unmount(self):
        """Unmounts it; a process that was just killed may hold it for a moment."""
        deadline = time.monotonic() + WAIT_SECONDS
        while run("umount", self.at, check=False).returncode != 0:
            if time.monotonic() > deadline:
                run("umount", self.at)
            time.sleep(0.02)

    def sync(self):
        """Makes everything durable."""
        run("sync", "-f", self.at)

    def crash(self, union):
        """Lets the power fail, and come back."""
        directory = os.open(self.at, os.O_RDONLY)
        fcntl.ioctl(directory, SHUTDOWN, NO_LOG_FLUSH)
        os.close(directory)
        union.kill()
        self.unmount()
        self.mount()


class CutDisk:
    """A disk with a power cut at the end, which loses the writes since its last flush or does not; created anew for
    each row."""

    def __init__(self, condition):
        self.condition, self.number = condition, 0
        self.kind, self.size_mib, self.uid = CUT[condition]
        self.at = PLACE / f"fs-{condition}"
        self.at.mkdir()
        self.stack = None

    def begin(self):
        """Begins a row, on an empty disk."""
        self.end()
        directory = PLACE / f"disk-{self.condition}-{self.number}"
        directory.mkdir()
        self.number += 1
        self.stack = contextlib.ExitStack()
        self.disk = powercut.Disk(directory, self.kind, self.size_mib << 20)
        self.stack.callback(shutil.rmtree, directory)
        self.show(self.disk.base)
        os.chown(self.at, self.uid, self.uid)

    def show(self, image):
        """Mounts an image in place of the mounted one."""
        self.hide()
        self.mounted = self.stack.enter_context(contextlib.ExitStack())
        self.mounted.enter_context(powercut.mounted(image, self.at))

    def hide(self):
        """Unmounts."""
        if hasattr(self, "mounted"):
            self.mounted.close()
            del self.mounted

    def sync(self):
        """Ends the preparation: from now on the disk's power can be cut."""
        self.hide()
        self.power = self.stack.enter_context(contextlib.ExitStack())
        self.show(self.power.enter_context(self.disk.powered()))

    @contextlib.contextmanager
    def powered(self):
        """Spans the time in which the disk's power can be cut."""
        self.sync()
        yield
        self.hide()
        self.power.close()

    def mark(self, number):
        """Notes an answer."""
        self.disk.mark(str(number))

    def entries(self):
        """Returns the number of log entries."""
        return self.disk.entries()

    def cut(self, at, seed):
        """Cuts the power, and mounts the rest. Returns the marks until then."""
        self.hide()
        image, marks = self.disk.cut(at, seed)
        self.show(image)
        return [int(mark) for mark in marks]

    def crash(self, union):
        """Lets the power fail now, and come back."""
        at = self.disk.entries()
        union.kill()
        self.hide()
        self.power.close()
        self.cut(at, 1)

    def end(self):
        """Releases everything."""
        if self.stack:
            self.hide()
            self.stack.close()
            self.stack = None


class Union:
    """A union with its upper directory on a disk, and the operations through it."""

    def __init__(self, disk, name, lower, more=""):
        self.disk, self.lower, self.more = disk, lower, more
        self.server = None
        self.upper, self.work = disk.at / name / "upper", disk.at / name / "work"
        self.at = PLACE / f"union-{disk.condition}-{name}"
        for path in (self.upper, self.work, self.at):
            path.mkdir(parents=True)
            os.chown(path, disk.uid, disk.uid)

    def command(self, *words, check=True):
        """Runs the program as the user."""
        words = [PLACE / "tsumugi", "union", *words]
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if self.disk.uid else {}
        return run(*words, check=check, env={**os.environ, "XDG_RUNTIME_DIR": str(PLACE)}, **user)

    def mount(self, more=None):
        """Mounts it, with a server of its own."""
        more = self.more if more is None else more
        layers = options_of([self.lower], self.upper, self.work, more)
        self.command("--own-process", "-o", layers, self.at)
        self.server = server_of(self.at)

    def unmount(self):
        """Unmounts it cleanly."""
        run("umount", self.at)
        deadline = time.monotonic() + WAIT_SECONDS
        while lives(self.server):
            assert time.monotonic() < deadline, "the server does not end"
            time.sleep(0.005)
        self.server = None

    def kill(self):
        """Kills the server, and removes the dead mount."""
        if self.server is None:
            return
        os.kill(self.server, signal.SIGKILL)
        run("umount", "-l", self.at)
        deadline = time.monotonic() + WAIT_SECONDS
        while lives(self.server):
            assert time.monotonic() < deadline, "the server does not die"
            time.sleep(0.005)
        self.server = None

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.kill()

    def do(self, act, *arguments):
        """Calls a function with the mount point, as the user."""
        return as_user(self.disk.uid, act, self.at, *arguments)


def rename_exchange(one, two):
    """Calls renameat2(2) with RENAME_EXCHANGE."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(two), 2) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def syncfs(path):
    """Calls syncfs(2)."""
    directory = os.open(path, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).syncfs(directory) != 0:
        raise OSError(ctypes.get_errno(), "syncfs")
    os.close(directory)


def can_cut(condition):
    """Returns whether the machine has the programs to cut this disk's power."""
    make = powercut.MAKE[CUT[condition][0]][0]
    return powercut.program() is not None and shutil.which(make) is not None


def require():
    """Ends the test unless the machine has what it needs."""
    import sys
    root = Path(__file__).resolve().parent.parent.parent
    needed = run(root / "tools/require", "root", "fuse", "fusermount", "mkfs-ext4", "mkfs-xfs",
                 "losetup", check=False)
    if needed.returncode != 0:
        print(needed.stdout.strip())
        sys.exit(needed.returncode)
