"""Loads that know at any moment the right content of their files, for tests that kill and cut.

A file's content consists of records of 64 bytes that name their file, version and place, so that all
bytes that are read show their origin. A load notes each operation before it does it, and its
acknowledgement after it. After a failure in between, each record has a version from the acknowledged
one to the attempted one.
"""
import multiprocessing
import os
import queue
import random

RECORD_BYTES = 64


def content(name, version, records):
    """Returns a file's bytes in a version."""
    parts = (f"{name} v{version} r{record}".ljust(RECORD_BYTES - 1) + "\n"
             for record in range(records))
    return "".join(parts).encode()


def versions(name, data):
    """Returns the versions of a file's records; None for one that is not this file's, or misplaced."""
    found = []
    for record in range(0, len(data), RECORD_BYTES):
        words = data[record:record + RECORD_BYTES].decode(errors="replace").split()
        whole = len(words) == 3 and words[0] == name and words[2] == f"r{record // RECORD_BYTES}"
        found.append(int(words[1][1:]) if whole and words[1][1:].isdigit() else None)
    return found


class Load:
    """Creates, replaces, overwrites and removes files of its own in `directory`.

    Runs in a process of its own: when a process starts another one, the child closes the files that its
    threads have open, which waits if the file system is out of order.
    """

    def __init__(self, mount, name, seed, files=24, pause=0.002):
        self.directory = name
        self.mount = mount
        self.random = random.Random(seed)
        self.files = files
        self.pause = pause
        self.acknowledged = {}
        self.attempted = {}
        self.errors = []
        self.stopping = multiprocessing.Event()
        self.counter = multiprocessing.Value("Q", 0)
        self.failed = multiprocessing.Event()
        self.results = multiprocessing.Queue()
        self.process = multiprocessing.Process(target=self.run, daemon=True)
        (mount / name).mkdir()

    def start(self):
        """Starts it."""
        self.process.start()

    @property
    def operations(self):
        """Operations done so far."""
        return self.counter.value

    @property
    def has_failed(self):
        """Returns whether the load has met an error, which ends it."""
        return self.failed.is_set()

    def records(self, number):
        """Returns the records of a file: the same in all its versions; from less than a block to 1 MB."""
        return [3, 70, 1000, 16000][number % 4] + number

    def run(self):
        """Runs the load's process."""
        errors = []
        try:
            with open(self.mount / self.directory / "held", "wb", buffering=0) as held:
                while not self.stopping.is_set():
                    self.step(held)
                    self.counter.value += 1
                    self.stopping.wait(self.pause)
        except OSError as error:
            errors.append(str(error))
            self.failed.set()
        self.results.put((self.acknowledged, self.attempted, errors))

    def stop(self, seconds=90):
        """Ends the load. Returns whether it ended in time."""
        self.stopping.set()
        try:
            self.acknowledged, self.attempted, self.errors = self.results.get(timeout=seconds)
        except queue.Empty:
            return False
        self.process.join(seconds)
        return not self.process.is_alive()

    def step(self, held):
        """Does one operation."""
        kind = self.random.random()
        if kind < 0.15:
            self.write_held(held)
            return
        number = self.random.randrange(self.files)
        name = f"file{number}"
        version = self.attempted.get(name, 0) + 1
        self.attempted[name] = version
        sync = self.random.random() < 0.3
        path = self.mount / self.directory / name
        if number % 2:
            self.replace(path, name, version, number, sync)
        else:
            self.overwrite(path, name, version, number, sync)
        self.acknowledged[name] = version

    def replace(self, path, name, version, number, sync):
        """Writes the new version, which takes its name when it is complete."""
        new = path.with_suffix(".new")
        with open(new, "wb", buffering=0) as file:
            self.write(file, content(name, version, self.records(number)), sync)
        os.rename(new, path)

    def overwrite(self, path, name, version, number, sync):
        """Writes the new version over the old one."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        with open(file, "wb", buffering=0) as file:
            self.write(file, content(name, version, self.records(number)), sync)

    def write(self, file, data, sync):
        """Writes all of the data, in pieces that end anywhere."""
        piece = self.random.choice([50_000, 300_001, 1 << 20])
        for start in range(0, len(data), piece):
            assert file.write(data[start:start + piece]) == len(data[start:start + piece])
        if sync:
            os.fsync(file.fileno())

    def write_held(self, held):
        """Writes to a file that stays open; its fsync acknowledges each version."""
        version = self.attempted.get("held", 0) + 1
        self.attempted["held"] = version
        data = content("held", version, 200)
        assert os.pwrite(held.fileno(), data, 0) == len(data)
        os.fsync(held.fileno())
        self.acknowledged["held"] = version

    def check(self, mount):
        """Returns what is wrong with the files that a mount shows, in words."""
        wrong = []
        for name, attempted in list(self.attempted.items()):
            acknowledged = self.acknowledged.get(name, 0)
            try:
                data = (mount / self.directory / name).read_bytes()
            except FileNotFoundError:
                if acknowledged:
                    wrong.append(f"{name} is gone, v{acknowledged} was acknowledged")
                continue
            except OSError as error:
                wrong.append(f"{name}: {error}")
                continue
            wrong += self.check_content(name, data, acknowledged, attempted)
        return [f"{self.directory}, seen by {mount.name}: {text}" for text in wrong]

    def check_content(self, name, data, acknowledged, attempted):
        """Returns what is wrong with a file's bytes."""
        records = 200 if name == "held" else self.records(int(name[4:]))
        if len(data) != records * RECORD_BYTES and acknowledged:
            return [f"{name} has {len(data)} bytes, not {records * RECORD_BYTES}"]
        found = versions(name, data)
        # Before the first acknowledgement holes of an incomplete file are zeros.
        bad = [place for place, version in enumerate(found)
               if (version is None and acknowledged)
               or (version is not None and not acknowledged <= version <= attempted)]
        if bad:
            return [f"{name}, records {bad[:5]} of {len(bad)}: versions "
                    f"{[found[place] for place in bad[:5]]}, not {acknowledged} to {attempted}"]
        is_replaced = name != "held" and int(name[4:]) % 2
        if is_replaced and len(set(found)) > 1:
            return [f"{name} is torn between the versions {sorted(set(found))}"]
        return []

    def live_bytes(self, mount):
        """Returns the bytes that the load's files need in whole blocks, as a mount shows them."""
        return sum(-(-file.stat().st_size // 4096) * 4096
                   for file in (mount / self.directory).iterdir())
