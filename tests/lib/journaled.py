"""One process's work in a directory of its own, and its possible states after a loss of power.

Every operation that changes names or attributes makes the next of the directory's *states*. The
metadata service carries out the calls of one process in their order, so the directory is found in one of the
states: none older than the last one acknowledged as durable, none newer than the last one begun. A file's
identity is its permission bits, which it gets together with its first name. Its content is made of
records of 64 bytes that name file, write and place, so that all bytes that are read show their origin.
"""
import errno
import os
import random
from pathlib import Path

RECORD_BYTES = 64
PAGE_BYTES = 4096
RECORDS = [5, 64, 300, 1500]
NAMES = [f"{place}{name}" for place in ("", "left/", "right/") for name in "abcd"]
XATTRS = ["user.one", "user.two"]
# Large enough that a few hundred of them make the store write out its memory and compact.
XATTR_BYTES = [40, 60_000, 60_000, 60_000]


def record(file, write, place):
    """Returns the bytes of one record."""
    return f"f{file} w{write} r{place}".ljust(RECORD_BYTES - 1).encode() + b"\n"


def value_of(seed):
    """Returns an extended attribute's value, without a pattern that a store could compress."""
    rng = random.Random(seed)
    return rng.randbytes(rng.choice(XATTR_BYTES))


class File:
    """The writes to a file, and how many of them were acknowledged as durable."""

    def __init__(self, records):
        self.records = records
        self.writes = []

    def allowed(self, place, synced):
        """Returns the writes from which a record may come, and whether it may be missing."""
        of_place = [number for number, (first, count) in enumerate(self.writes)
                    if first <= place < first + count]
        before = [number for number in of_place if number < synced]
        return before[-1:] + [number for number in of_place if number >= synced], not before


class Work:
    """Random operations below `mount`/`name`; `mark` receives what begins and what is durable."""

    def __init__(self, mount, name, seed, mark, done):
        self.root = Path(mount, name)
        self.name = name
        self.random = random.Random(seed)
        self.mark = mark
        # How many operations each worker has finished: shared with the others.
        self.done = done
        self.number = int(name[1:])
        self.files = []
        self.states = [{}]
        self.names = {}

    def step(self):
        """Does one operation."""
        kind = self.random.random()
        if kind < 0.30:
            self.write_new()
        elif kind < 0.45 and self.names:
            self.overwrite()
        elif kind < 0.65 and self.names:
            for _ in range(self.random.randint(1, 8)):
                self.set_xattr()
        elif kind < 0.80 and self.names:
            self.rename()
        elif kind < 0.87 and self.names:
            self.link()
        elif self.names:
            self.unlink()

    def begin(self, change):
        """Reports that an operation begins, and the state after it."""
        names = {name: (file, dict(xattrs)) for name, (file, xattrs) in self.names.items()}
        change(names)
        # Names of one file share its attributes.
        shared = {}
        for name, (file, xattrs) in names.items():
            names[name] = (file, shared.setdefault(file, xattrs))
        self.mark(f"begun {self.name} {len(self.states)}")
        self.names = names
        self.states.append(self.observable())

    def observable(self):
        """Returns the state as `observe` finds it."""
        links = {}
        for file, _ in self.names.values():
            links[file] = links.get(file, 0) + 1
        return {name: (file, links[file], tuple(sorted(xattrs.items())))
                for name, (file, xattrs) in self.names.items()}

    def end(self):
        """Ends the operation."""
        self.done[self.number] = len(self.states) - 1

    def any_name(self):
        """Returns an existing name."""
        return self.random.choice(sorted(self.names))

    def fsync(self, descriptor, file):
        """Asks for durability, and notes the promise of the answer: the writes to the file, and all operations of all
        workers that had ended before the request."""
        before, writes = list(self.done), len(self.files[file].writes)
        os.fsync(descriptor)
        self.mark(f"synced {self.name} {file} {writes} {' '.join(map(str, before))}")

    def write_new(self):
        """Writes a new file, complete or in part, under a free or a replaced name."""
        name, file = self.random.choice(NAMES), len(self.files)
        assert file <= 0o777
        self.files.append(File(self.random.choice(RECORDS)))
        place = name if name not in self.names else "new"
        self.begin(lambda names: names.update({place: (file, {})}))
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        descriptor = os.open(self.root / place, flags, file)
        self.end()
        self.write(descriptor, file, 0, self.files[file].records)
        if self.random.random() < 0.5:
            self.fsync(descriptor, file)
        os.close(descriptor)
        if place != name:
            self.move(place, name)

    def write(self, descriptor, file, first, count):
        """Writes records."""
        number = len(self.files[file].writes)
        self.files[file].writes.append((first, count))
        data = b"".join(record(file, number, place) for place in range(first, first + count))
        assert os.pwrite(descriptor, data, first * RECORD_BYTES) == len(data)

    def overwrite(self):
        """Writes some records of a file anew."""
        name = self.any_name()
        file = self.names[name][0]
        first = self.random.randrange(self.files[file].records)
        count = self.random.randint(1, self.files[file].records - first)
        descriptor = os.open(self.root / name, os.O_WRONLY)
        self.write(descriptor, file, first, count)
        if self.random.random() < 0.5:
            self.fsync(descriptor, file)
        os.close(descriptor)

    def set_xattr(self):
        """Gives an attribute another value."""
        name, key = self.any_name(), self.random.choice(XATTRS)
        file = self.names[name][0]
        seed = self.random.randrange(1 << 30)

        def change(names):
            for other, xattrs in names.values():
                if other == file:
                    xattrs[key] = seed

        self.begin(change)
        os.setxattr(self.root / name, key, value_of(seed))
        self.end()

    def move(self, source, target):
        """Renames a file, and may replace another."""
        def change(names):
            moved = names.pop(source)
            # Two names of one file: POSIX requires that nothing happens.
            if target in names and names[target][0] == moved[0]:
                names[source] = moved
            else:
                names[target] = moved

        self.begin(change)
        os.rename(self.root / source, self.root / target)
        self.end()

    def rename(self):
        """Changes a name."""
        self.move(self.any_name(), self.random.choice(NAMES))

    def link(self):
        """Adds a second name."""
        name, other = self.any_name(), self.random.choice(NAMES)
        if other in self.names:
            return
        self.begin(lambda names: names.update({other: names[name]}))
        os.link(self.root / name, self.root / other)
        self.end()

    def unlink(self):
        """Removes a name."""
        name = self.any_name()
        self.begin(lambda names: names.pop(name))
        os.unlink(self.root / name)
        self.end()


def observe(root):
    """Returns the state of a directory."""
    found = {}
    for place in ("", "left", "right"):
        for entry in os.scandir(root / place):
            if entry.is_dir(follow_symlinks=False):
                continue
            status = entry.stat(follow_symlinks=False)
            xattrs = {key: os.getxattr(entry.path, key) for key in os.listxattr(entry.path)}
            name = str(Path(entry.path).relative_to(root))
            found[name] = (status.st_mode & 0o777, status.st_nlink, xattrs)
    return found


def is_state(found, state):
    """Returns whether an observed directory matches a state."""
    if found.keys() != state.keys():
        return False
    for name, (mode, links, xattrs) in found.items():
        file, state_links, seeds = state[name]
        if (mode, links) != (file, state_links) or len(seeds) != len(xattrs):
            return False
        if any(xattrs.get(key) != value_of(seed) for key, seed in seeds):
            return False
    return True


def read_pages(path):
    """Returns a file's bytes, with None for each lost page."""
    pages = []
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for at in range(0, size, PAGE_BYTES):
            try:
                pages.append(os.pread(file.fileno(), PAGE_BYTES, at))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                pages.append(None)
    return size, pages


def wrong_content(path, file, log, synced):
    """Returns what is wrong with a file's content, given that its first `synced` writes are durable."""
    size, pages = read_pages(path)
    ends = [first + count for first, count in log.writes]
    size_min = max(ends[:synced], default=0) * RECORD_BYTES
    if not size_min <= size <= max(ends, default=0) * RECORD_BYTES:
        return f"it has {size} bytes, at least {size_min} are durable"
    per_page = PAGE_BYTES // RECORD_BYTES
    for number, page in enumerate(pages):
        places = range(number * per_page, min((number + 1) * per_page, log.records))
        allowed = {place: log.allowed(place, synced) for place in places}
        if page is None:
            # Only later writes can be lost.
            if all(len(writes) == 1 and not may_miss for writes, may_miss in allowed.values()):
                return f"page {number} is lost, though all of it is durable"
            continue
        for place in places:
            at = (place - number * per_page) * RECORD_BYTES
            found = page[at:at + RECORD_BYTES]
            writes, may_miss = allowed[place]
            if not found or (may_miss and found == bytes(len(found))):
                continue
            if found not in [record(file, write, place) for write in writes]:
                return f"record {place} is {found!r}, not of the writes {writes}"
    return None


def check(root, works, marks):
    """Returns what is wrong with the directories of all workers, in words, after a cut with these marks."""
    begun = {work.name: 0 for work in works}
    durable = {work.name: 0 for work in works}
    synced = {}
    for words in map(str.split, marks):
        if words[0] == "begun":
            begun[words[1]] = int(words[2])
            continue
        if words[0] == "synced":
            name, file, writes = words[1], int(words[2]), int(words[3])
            synced[name, file] = max(writes, synced.get((name, file), 0))
        before = words[4:] if words[0] == "synced" else words[1:]
        for work, count in zip(works, map(int, before)):
            durable[work.name] = max(count, durable[work.name])
    for work in works:
        found = observe(root / work.name)
        low, high = durable[work.name], begun[work.name]
        state = next((work.states[number] for number in range(low, high + 1)
                      if is_state(found, work.states[number])), None)
        if state is None:
            old = [number for number in range(low) if is_state(found, work.states[number])]
            names = {name: (oct(mode), links, sorted(xattrs))
                     for name, (mode, links, xattrs) in found.items()}
            yield f"{work.name} is in none of the states {low} to {high}, but in {old}: {names}"
            continue
        for name, (file, _, _) in state.items():
            wrong = wrong_content(root / work.name / name, file, work.files[file],
                                  synced.get((work.name, file), 0))
            if wrong:
                yield f"{work.name}/{name} (file {file}): {wrong}"
