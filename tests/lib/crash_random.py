"""Random operations on a union with syncs at random points, kills of its server and crashes.

The model keeps the meanings of each name over time, and the contents of each file. A sync of a file promises
its name and its content from then on, a sync of a directory its names. After a crash each name shows one of its
meanings since the promise, with a content since that file's sync; and a synced file that still has a name is
under one of the names that it had since.
"""
import os
import random

import crash
from crash import rename_exchange
from crash_case import CHUNK, FILES

OTHERS = [f"z/o{number}" for number in range(8)]
PATHS = ["a/f", "a/g", "a/small", "b/f", "p/q/r/f", "a/x", "b/x", "p/q/r/x", *OTHERS]
DIRECTORIES = ["a", "b", "p/q/r", "z"]
MODES = ["chunk=4K,fill=keep", "chunk=4K,fill=keep", "chunk=4K,fill=background,batch_files=3",
         "chunk=0"]
BATCH_MS = [10000, 10000, 20]
CRASHES = 2
BLOCK = 512


class File:
    """The contents of a file over time, and its syncs."""

    def __init__(self, content, now=0, is_synced=False):
        self.versions, self.syncs = [(now, content)], []
        if is_synced:
            self.sync(now)

    def now(self):
        """Returns the present content."""
        return self.versions[-1][1]

    def change(self, now, content):
        """Records a new content."""
        self.versions.append((now, content))

    def sync(self, now):
        """Records that the content is durable."""
        self.syncs.append((now, len(self.versions) - 1))

    def synced(self, done):
        """Returns when it was synced last until then, and with which version; None if it was not."""
        return next((sync for sync in reversed(self.syncs) if sync[0] <= done), None)

    def allows(self, found, done, begun):
        """Returns whether `found` consists of versions since the sync, as an ordinary file's pages and size
        may reach the disk: beyond the smallest size a byte may also be zero."""
        first = (self.synced(done) or (0, 0))[1]
        legal = [content for time, content in self.versions[first:] if time <= begun]
        sizes = [len(version) for version in legal]
        if not sizes or found is None or not min(sizes) <= len(found) <= max(sizes):
            return False
        for at in range(0, len(found), BLOCK):
            part = found[at:at + BLOCK]
            if any(version[at:at + BLOCK] == part for version in legal):
                continue
            for place, byte in enumerate(part, at):
                values = {version[place] for version in legal if place < len(version)}
                if byte not in values and not (byte == 0 and place >= min(sizes)):
                    return False
        return True


def contents(at):
    """Returns what all names show: inode and content."""
    found = {}
    for path in PATHS:
        try:
            found[path] = os.stat(at / path).st_ino, (at / path).read_bytes()
        except FileNotFoundError:
            found[path] = None
    return found


class Random:
    """One seed."""

    def __init__(self, disk, lower, seed, steps):
        self.random, self.disk, self.steps, self.seed = random.Random(seed), disk, steps, seed
        more = f"{self.random.choice(MODES)},batch_ms={self.random.choice(BATCH_MS)}"
        self.union = crash.Union(disk, f"seed-{seed}", lower, more)
        self.time, self.log = 0, [more]
        self.meanings, self.promises = {}, {path: [0] for path in PATHS}
        for path in PATHS:
            file = File(FILES[path], is_synced=True) if path in FILES else None
            self.meanings[path] = [(0, file)]

    def now(self, path):
        """Returns the file of a name."""
        return self.meanings[path][-1][1]

    def mean(self, path, file):
        """Records a new meaning of a name."""
        self.meanings[path].append((self.time, file))

    def meaning(self, path, time):
        """Returns what a name meant at some time."""
        return next(file for begin, file in reversed(self.meanings[path]) if begin <= time)

    def names(self, file, time=None):
        """Returns the names of a file."""
        time = self.time if time is None else time
        return [path for path in PATHS if self.meaning(path, time) is file]

    def do(self, act, *paths):
        """Carries out an operation."""
        return self.union.do(lambda at: act(*(at / path for path in paths)))

    def sync(self, path):
        """Records the answer of a file's sync."""
        self.now(path).sync(self.time)
        if len(self.names(self.now(path))) == 1:
            self.promises[path].append(self.time)

    def step(self):
        """Does one operation."""
        self.time += 1
        there = [path for path in PATHS if self.now(path)]
        if self.random.random() < 0.15:
            return self.lose()
        free = [path for path in PATHS if not self.now(path)]
        choice, path = self.random.random(), self.random.choice(there or PATHS)
        if there and choice < 0.40:
            self.change(path, self.random.random() < 0.5)
        elif free and choice < 0.49:
            self.make(self.random.choice(free))
        elif there and choice < 0.60:
            self.note(f"unlink {path}")
            self.do(os.unlink, path)
            self.mean(path, None)
        elif there and choice < 0.75:
            self.rename(path, self.random.choice(PATHS))
        elif len(there) > 1 and choice < 0.80:
            self.exchange(path, self.random.choice(there))
        elif there and free and choice < 0.83:
            other = self.random.choice(free)
            self.note(f"link {path} {other}")
            self.do(os.link, path, other)
            self.mean(other, self.now(path))
        elif there and choice < 0.87:
            self.note(f"chmod {path}")
            self.do(lambda name: os.chmod(name, 0o640), path)
        elif choice < 0.93:
            self.sync_directory(self.random.choice(DIRECTORIES))
        elif choice < 0.95:
            self.note("union sync")
            self.union.command("sync", self.union.at)
            for each in PATHS:
                self.promises[each].append(self.time)
                if self.now(each):
                    self.now(each).sync(self.time)
        elif choice < 0.96:
            self.note("kill")
            self.union.kill()
            self.union.mount()

    def lose(self):
        """Removes the name of a synced file, and syncs others."""
        path = self.random.choice([path for path in OTHERS if self.now(path)] or [OTHERS[0]])
        if not self.now(path):
            return
        self.change(path, True)
        self.time += 1
        free = [other for other in PATHS if not self.now(other)]
        if free and self.random.random() < 0.5:
            other = self.random.choice(free)
            self.make(other)
            self.time += 1
            self.rename(other, path)
        else:
            self.note(f"unlink {path}")
            self.do(os.unlink, path)
            self.mean(path, None)
        self.flush()

    def flush(self):
        """Syncs other files, as may happen at any time; mostly partial ones."""
        for _ in range(self.random.randrange(1, 3)):
            self.time += 1
            path = self.random.choice(OTHERS)
            if self.now(path):
                self.change(path, True)

    def note(self, text):
        """Notes an operation for a failure's message."""
        self.log.append(f"{self.time}: {text}")

    def change(self, path, is_synced):
        """Writes to a file, or cuts it."""
        file, old = self.now(path), self.now(path).now()
        is_cut = self.random.random() < 0.15
        if is_cut:
            size = self.random.randrange(len(old) + 1)
            new = old[:size]
        else:
            at = self.random.randrange(len(old) // CHUNK + 1) * CHUNK
            at = min(at, len(old))
            data = bytes([self.random.randrange(1, 256)]) * self.random.choice([100, 4096, 9000])
            new = old[:at] + data + old[at + len(data):]
        self.note(f"{'cut' if is_cut else 'write'} {path}{', synced' if is_synced else ''}")

        def act(name):
            descriptor = os.open(name, os.O_RDWR)
            if is_cut:
                os.ftruncate(descriptor, size)
            else:
                os.pwrite(descriptor, data, at)
            if is_synced:
                os.fsync(descriptor)
            os.close(descriptor)

        self.do(act, path)
        file.change(self.time, new)
        if is_synced:
            self.sync(path)

    def make(self, path):
        """Creates a file."""
        data, is_synced = os.urandom(50) * 100, self.random.random() < 0.5
        self.note(f"make {path}{', synced' if is_synced else ''}")

        def act(name):
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.pwrite(descriptor, data, 0)
            if is_synced:
                os.fsync(descriptor)
            os.close(descriptor)

        self.do(act, path)
        file = File(b"", self.time)
        file.change(self.time, data)
        self.mean(path, file)
        if is_synced:
            self.sync(path)

    def rename(self, path, other):
        """Renames a file, and may replace another."""
        self.note(f"rename {path} {other}")
        self.do(os.rename, path, other)
        # Two names of one file: nothing happens.
        if path != other and self.now(path) is not self.now(other):
            self.mean(other, self.now(path))
            self.mean(path, None)

    def exchange(self, path, other):
        """Exchanges two names."""
        self.note(f"exchange {path} {other}")
        self.do(rename_exchange, path, other)
        one, two = self.now(path), self.now(other)
        self.mean(path, two)
        self.mean(other, one)

    def sync_directory(self, directory):
        """Makes a directory's names durable."""
        self.note(f"sync {directory}")

        def act(name):
            descriptor = os.open(name, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

        self.do(act, directory)
        for path in PATHS:
            if os.path.dirname(path) == directory:
                self.promises[path].append(self.time)

    def meanings_since(self, path, time, begun):
        """Returns the meanings of a name since some time."""
        history = [(begin, file) for begin, file in self.meanings[path] if begin <= begun]
        first = max(number for number, (begin, _) in enumerate(history) if begin <= time)
        return [file for _, file in history[first:]]

    def check(self, found, done, begun):
        """Returns what is wrong, in words, after the operation `done` has ended, and `begun` has begun."""
        data = {path: item and item[1] for path, item in found.items()}
        for path in PATHS:
            promise = max(time for time in self.promises[path] if time <= done)
            legal = self.meanings_since(path, promise, begun)
            if not any(data[path] is None if file is None else file.allows(data[path], done, begun)
                       for file in legal):
                is_lower = path in FILES and data[path] == FILES[path]
                what = "gone" if data[path] is None else f"{len(data[path])} bytes"
                yield f"{path} is {what}{', the lower file' if is_lower else ''}"
        for file in {id(file): file for path in PATHS for _, file in self.meanings[path]
                     if file and file.synced(done) and self.names(file, done)
                     and self.names(file, begun)}.values():
            since = file.synced(done)[0]
            names = [path for path in PATHS if file in self.meanings_since(path, since, begun)]
            if not any(file.allows(data[path], done, begun) for path in names):
                yield f"a synced file is under none of its names {names}"

    def begin_anew(self, found):
        """Takes the observed state as the durable one."""
        files = {}
        for path in PATHS:
            file = None
            if found[path]:
                inode, data = found[path]
                file = files.setdefault(inode, File(data, self.time, is_synced=True))
            self.meanings[path] = [(self.time, file)]
            self.promises[path] = [self.time]

    def run(self):
        """Works and crashes several times. Returns what was wrong, in words."""
        # Its directories always exist.
        self.disk.sync()
        self.union.mount()
        for _ in range(CRASHES):
            for _ in range(self.random.randint(self.steps // 4, self.steps) // CRASHES):
                self.step()
            self.flush()
            self.note("crash")
            self.disk.crash(self.union)
            self.union.mount()
            found = self.union.do(contents)
            wrong = list(self.check(found, self.time, self.time))
            if wrong:
                self.union.kill()
                return [*wrong, "after " + "; ".join(self.log)]
            self.begin_anew(found)
        self.union.unmount()
        return []

    def run_and_cut(self, cuts):
        """Works on a disk with a power cut afterwards, at any time. Returns what was wrong, in words."""
        marks = [0]
        with self.disk.powered():
            self.union.mount()
            for _ in range(self.steps):
                self.step()
                marks.append(self.time)
                self.disk.mark(self.time)
            self.union.kill()
        entries = self.disk.entries()
        for cut in range(cuts):
            at = entries if cut == 0 else self.random.randrange(entries)
            done = max(self.disk.cut(at, cut), default=0)
            self.union.mount()
            found = self.union.do(contents)
            # All of the next step may have been done, except its mark.
            begun = next((mark for mark in marks if mark > done), done)
            wrong = list(self.check(found, done, begun))
            if wrong:
                self.union.kill()
                return [f"cut {cut} at entry {at} of {entries}, after operation {done}",
                        *wrong, "of " + "; ".join(self.log)]
            self.union.unmount()
        return []
