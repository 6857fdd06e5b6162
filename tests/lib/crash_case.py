"""The operations of a test of crashes, and the files that it begins with."""
import os

CHUNK = 4096


def lower_bytes(path, size=100_000):
    """Returns a lower file's content: no zeros, so that a hole shows."""
    line = f"{path} as it was below. ".encode()
    return (line * (size // len(line) + 1))[:size]


# The lower layer.
FILES = {path: lower_bytes(path) for path in
         ["a/f", "a/g", "b/f", "p/q/r/f", "n/below", *(f"z/o{number}" for number in range(8))]}
FILES["a/small"] = lower_bytes("a/small", 900)


class Case:
    """The operations of a row, and the files that are known to be durable."""

    def __init__(self, union):
        self.union = union
        self.now = dict(FILES)
        # Files that must be found in any state.
        self.exact = {}
        self.others = iter(range(8))

    def do(self, act, *names):
        """Calls a function with paths of the union."""
        return self.union.do(lambda at: act(*(at / name for name in names)))

    def patch(self, path, text=b"patch", at=CHUNK, sync=True):
        """Writes into a file. Returns its new content."""
        data = text * 20
        old = self.now[path]
        self.now[path] = old[:at] + data + old[at + len(data):]

        def act(name):
            file = os.open(name, os.O_RDWR)
            os.pwrite(file, data, at)
            if sync:
                os.fsync(file)
            os.close(file)

        self.do(act, path)
        if sync:
            self.exact[path] = self.now[path]
        return self.now[path]

    def make(self, path, text=b"made anew ", sync=True):
        """Makes a file."""
        def act(name):
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.pwrite(file, text * 500, 0)
            if sync:
                os.fsync(file)
            os.close(file)

        self.do(act, path)
        self.now[path] = text * 500
        return self.now[path]

    def flush(self):
        """Syncs another partial file."""
        self.patch(f"z/o{next(self.others)}", b"flush")

    def sync_directory(self, path):
        """Calls fsync on a directory."""
        def act(name):
            directory = os.open(name, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)

        self.do(act, path)

    def replace_server(self):
        """Kills the server, and mounts the union again."""
        self.union.kill()
        self.union.mount()
