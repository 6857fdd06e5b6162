"""Histories of calls on names and files of several mounts, for a check that all have one order.

A Worker is a process with random steps in one directory of a mount. It writes each call, with its begin, its
end and its answer, as a line of JSON; `tsumugi-simulation linear` looks for an order of all of them
(crates/simulation/src/linear.rs describes a line). Times are those of the monotonic clock, which
all processes of a machine share. A call is *lost* if its error leaves open whether the call was made.
"""
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import random
import stat
import time

NAMES = ["a", "b", "c", "sub/a", "sub/b"]
# Names that only links get: a rename between two names of one file does nothing, and the kernel decides
# that by two looks at different moments.
LINKS = ["l", "sub/l"]
DIRECTORIES = {".": [name for name in NAMES + LINKS if "/" not in name],
               "sub": [name for name in NAMES + LINKS if "/" in name]}
# Files that are written only under a lock, and files that are written without one.
LOCKED, UNLOCKED = ["s", "t"], ["w", "x"]
BYTES = 8
VERDICTS = {errno.EEXIST: "exists", errno.ENOENT: "absent", errno.EISDIR: "isdirectory",
            errno.ENOTDIR: "notdirectory", errno.ENOTEMPTY: "notempty"}
# Errors of calls that have done nothing; ELOOP: a symbolic link is not followed.
NOTHING_DONE = {errno.ENOSPC, errno.EINVAL, errno.EMLINK, errno.ELOOP}
# The mount is gone, with its process.
GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV, errno.ECANCELED}
MODES = {"replace": 0, "no-replace": 1, "exchange": 2}
LIBC = ctypes.CDLL(None, use_errno=True)


class Lost(Exception):
    """The call may have been made."""


def kind(mode):
    """Returns a file's kind."""
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "file"


def number(data):
    """Returns the number in a file; 0 if nothing was ever written."""
    return int.from_bytes(data, "little")


class Worker:
    """A process that takes steps until a moment of the monotonic clock."""

    def __init__(self, name, directory, output, until, seed):
        self.name = name
        self.directory = directory
        self.until = until
        self.random = random.Random(seed)
        self.output = open(output, "w", encoding="utf-8")
        self.at = None
        self.values = 0

    def run(self):
        """Takes steps; after the mount is lost, it waits for the next one."""
        while time.monotonic() < self.until:
            try:
                if self.at is None:
                    self.at = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
                self.step()
            except OSError as error:
                if error.errno not in GONE | {errno.ENOENT} or (self.at is not None and error.errno == errno.ENOENT):
                    raise
                self.leave()
                time.sleep(0.05)
            time.sleep(self.random.random() ** 3 * 0.03)
        self.output.close()

    def leave(self):
        """Closes all files of a dead mount."""
        if self.at is not None:
            os.close(self.at)
            self.at = None

    def record(self, call, begin, answer, end, error=None):
        """Writes a line; the error is for people."""
        line = {"who": self.name, **call, "answer": answer, "begin": begin, "end": end}
        if error:
            line["error"] = errno.errorcode.get(error.errno, str(error))
        self.output.write(json.dumps(line) + "\n")
        self.output.flush()

    def call(self, call, function, looks=False):
        """Makes a call and records it. Returns the function's result, None after an error."""
        begin = time.monotonic_ns()
        try:
            answer = function()
        except OSError as error:
            end = time.monotonic_ns()
            verdict = VERDICTS.get(error.errno)
            # The kernel looks up two names at two moments.
            if call["op"] == "rename" and verdict in ("isdirectory", "notdirectory", "notempty"):
                return None
            # It may be the file without a name.
            if (call["op"] == "link" and verdict == "absent") or (call["op"] == "create" and verdict == "absent"):
                return None
            if verdict:
                self.record(call, begin, verdict, end)
            elif not looks and error.errno not in NOTHING_DONE:
                self.record(call, begin, "lost", None, error)
            if error.errno in GONE:
                raise
            return None
        except Lost as lost:
            if not looks:
                self.record(call, begin, "lost", None, lost.args[0])
            if lost.args[0].errno in GONE:
                raise lost.args[0] from None
            return None
        self.record(call, begin, answer, time.monotonic_ns())
        return answer

    def step(self):
        """Does a random step."""
        step = self.random.choices(
            [self.create, self.mkdir, self.symlink, self.link, self.unlink, self.rmdir, self.rename, self.lookup,
             self.list, self.write, self.swap, self.read],
            [10, 3, 2, 5, 8, 3, 12, 12, 5, 6, 8, 8])[0]
        step()

    def some(self, names):
        """Returns one of some names."""
        return self.random.choice(names)

    def create(self):
        """Creates a file."""
        path, exclusive = self.some(NAMES), self.random.random() < 0.5
        flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if exclusive else 0) | os.O_NOFOLLOW

        def make():
            fd = os.open(path, flags, 0o644, dir_fd=self.at)
            try:
                return {"inode": [os.fstat(fd).st_ino, "file"]}
            except OSError as error:
                raise Lost(error) from None
            finally:
                self.close(fd)
        self.call({"op": "create", "path": path, "exclusive": exclusive}, make)

    @staticmethod
    def close(fd):
        """Closes files with nothing to write."""
        with contextlib.suppress(OSError):
            os.close(fd)

    def mkdir(self):
        """Creates a directory."""
        path = self.some(NAMES)
        self.call({"op": "mkdir", "path": path}, lambda: os.mkdir(path, dir_fd=self.at) or "done")

    def symlink(self):
        """Creates a symbolic link."""
        path = self.some(NAMES)
        self.call({"op": "symlink", "path": path}, lambda: os.symlink("nowhere", path, dir_fd=self.at) or "done")

    def link(self):
        """Gives a file another name. The file stays open, so that it is known which one it is."""
        path, to = self.some(NAMES), self.some(LINKS)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.at)
        except OSError as error:
            if error.errno in GONE:
                raise
            return
        try:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode):
                self.call({"op": "link", "inode": found.st_ino, "path": to},
                          lambda: os.link(f"/proc/self/fd/{fd}", to, dst_dir_fd=self.at, follow_symlinks=True)
                          or "done")
        finally:
            self.close(fd)

    def unlink(self):
        """Removes a name."""
        path = self.some(NAMES + LINKS)
        self.call({"op": "unlink", "path": path}, lambda: os.unlink(path, dir_fd=self.at) or "done")

    def rmdir(self):
        """Removes a directory."""
        path = self.some(NAMES)
        self.call({"op": "rmdir", "path": path}, lambda: os.rmdir(path, dir_fd=self.at) or "done")

    def rename(self):
        """Renames a name."""
        old, new = self.random.sample(NAMES, 2)
        mode = self.some(list(MODES))

        def move():
            if LIBC.renameat2(self.at, os.fsencode(old), self.at, os.fsencode(new), MODES[mode]) != 0:
                raise OSError(ctypes.get_errno(), "renameat2")
            return "done"
        self.call({"op": "rename", "from": old, "to": new, "mode": mode}, move)

    def lookup(self):
        """Looks a name up."""
        self.look(self.some(NAMES + LINKS))

    def look(self, path):
        """Looks a name up."""
        def find():
            found = os.stat(path, dir_fd=self.at, follow_symlinks=False)
            return {"inode": [found.st_ino, kind(found.st_mode)]}
        self.call({"op": "lookup", "path": path}, find, looks=True)

    def list(self):
        """Lists a directory; each entry may be seen at another moment."""
        directory = self.some(list(DIRECTORIES))
        begin = time.monotonic_ns()
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.at)
            try:
                with os.scandir(fd) as entries:
                    found = {entry.name: entry.inode() for entry in entries}
            finally:
                self.close(fd)
        except OSError as error:
            if error.errno in GONE:
                raise
            return
        end = time.monotonic_ns()
        for path in DIRECTORIES[directory]:
            inode = found.get(os.path.basename(path))
            answer = {"inode": [inode, None]} if inode else "absent"
            self.record({"op": "lookup", "path": path}, begin, answer, end)

    def value(self):
        """Returns a number that no other worker writes."""
        self.values += 1
        return (int(self.name.split("-")[1]) << 32) + self.values

    def write(self):
        """Opens, writes and closes a file."""
        path, value = self.some(UNLOCKED), self.value()

        def put():
            fd = os.open(path, os.O_WRONLY, dir_fd=self.at)
            try:
                os.pwrite(fd, value.to_bytes(BYTES, "little"), 0)
            except OSError as error:
                self.close(fd)
                raise Lost(error) from None
            try:
                os.close(fd)
            except OSError as error:
                raise Lost(error) from None
            return "done"
        self.call({"op": "write", "file": path, "value": value}, put)

    def swap(self):
        """Reads and writes a file under a lock."""
        path, new = self.some(LOCKED), self.value()
        begin, old = time.monotonic_ns(), None
        fd = None
        try:
            fd = os.open(path, os.O_RDWR, dir_fd=self.at)
            fcntl.lockf(fd, fcntl.LOCK_EX)
            old = number(os.pread(fd, BYTES, 0))
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.02)
            os.pwrite(fd, new.to_bytes(BYTES, "little"), 0)
            fcntl.lockf(fd, fcntl.LOCK_UN)
            closing, fd = fd, None
            os.close(closing)
        except OSError as error:
            if fd is not None:
                self.close(fd)
            if old is not None:
                self.record({"op": "swap", "file": path, "old": old, "new": new}, begin, "lost", None, error)
            if error.errno in GONE:
                raise
            return
        self.record({"op": "swap", "file": path, "old": old, "new": new}, begin, "done", time.monotonic_ns())

    def read(self):
        """Opens and reads a file, under a lock where all take one."""
        path = self.some(LOCKED + UNLOCKED)
        self.look_into(path)

    def look_into(self, path):
        """Opens and reads a file."""
        locked = path in LOCKED

        def get():
            fd = os.open(path, os.O_RDONLY, dir_fd=self.at)
            try:
                if locked:
                    fcntl.lockf(fd, fcntl.LOCK_SH)
                return {"value": number(os.pread(fd, BYTES, 0))}
            finally:
                self.close(fd)
        self.call({"op": "read", "file": path, "locked": locked}, get, looks=True)

    def look_at_all(self):
        """Takes a last look at everything."""
        self.at = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        for path in NAMES + LINKS:
            self.look(path)
        for path in LOCKED + UNLOCKED:
            self.look_into(path)
        self.leave()
        self.output.close()


def prepare(directory):
    """Makes the directory of a history with its files."""
    (directory / "sub").mkdir(parents=True)
    for path in LOCKED + UNLOCKED:
        (directory / path).touch()


def uncertain(lines, losses, around_ns):
    """Returns the lines, with failed changes as lost ones where their node lost its session meanwhile.

    A call that was repeated in another session may have met its own effect, so its error means nothing. `losses` are
    pairs of a node and the moment, which is known to `around_ns`.
    """
    for line in lines:
        is_failed_change = line["op"] not in ("lookup", "read") and str(line["answer"]) in VERDICTS.values()
        if is_failed_change and any(
                node == line["who"].split("-")[0]
                and line["begin"] <= moment + around_ns and moment - around_ns <= line["end"]
                for node, moment in losses):
            line["answer"] = "lost"
        yield line
