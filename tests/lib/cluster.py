"""A job's nodes on this machine, for the tests of the whole system.

A Cluster is a metadata service and nodes, each a process of its own, with sockets on loopback and
everything else in one directory. Leaving the `with` block takes all of it down, from any state, and
fails if a process had to be killed or has logged an error that it must not log.
"""
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

TSUMUGI = os.environ.get("TSUMUGI", "tsumugi")
START_SECONDS = 60
STOP_SECONDS = 30


class Process:
    """A `tsumugi` command that reports on its standard output when it is ready."""

    def __init__(self, directory, name, arguments, ready):
        self.name = name
        self.arguments = arguments
        self.ready = ready
        self.output = Path(directory, f"{name}.out")
        self.log = Path(directory, f"{name}.err")
        self.popen = None

    def start(self):
        """Starts it without waiting."""
        self.output.write_text("")
        environment = dict(os.environ, NO_COLOR="1")
        environment.setdefault("TSUMUGI_LOG", "info")
        with open(self.output, "w") as out, open(self.log, "a") as log:
            self.popen = subprocess.Popen([TSUMUGI, *self.arguments], stdout=out, stderr=log,
                                          stdin=subprocess.DEVNULL, env=environment)

    def wait_ready(self):
        """Waits for the line that reports this, and returns it."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for line in self.output.read_text().splitlines():
                if line.startswith(self.ready):
                    return line
            if self.popen.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"{self.name} is not ready; its log ends with:\n{self.tail()}")

    def tail(self, lines=20):
        """Returns the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def is_running(self):
        """Returns whether the process lives."""
        return self.popen is not None and self.popen.poll() is None

    def kill(self):
        """Kills it (kill -9)."""
        self.popen.kill()
        self.popen.wait()

    def stop(self):
        """Ends it cleanly. Returns whether that worked in time."""
        if not self.is_running():
            return True
        self.popen.send_signal(signal.SIGCONT)
        self.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.popen.wait(STOP_SECONDS) == 0
        self.kill()
        return False


class Cluster:
    """A metadata service and `nodes` nodes with a device of `size` each.

    `faster` divides all deadlines (a session's is 20 s), for tests that wait for them. With a
    `network` (see links.py) each node's sockets are in a network namespace of its own. The clients of
    the nodes in `never_stop_themselves` continue without contact, which no real client does. The store and
    the devices may be in another directory, `disk`. With `plain` the metadata service uses no
    TLS, for tests with an implementation of its protocol (wire.py). TEST_TRANSPORT, which tests/run sets, overrides
    `transport`.
    """

    def __init__(self, nodes=3, size="256M", directory=None, memory=False, transport="auto",
                 faster=1, network=None, never_stop_themselves=(), disk=None, plain=False):
        transport = os.environ.get("TEST_TRANSPORT", transport)
        self.directory = Path(directory or os.getcwd(), "cluster")
        self.directory.mkdir(mode=0o700)
        self.disk = Path(disk or self.directory)
        self.secret = self.directory / "secret"
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        self.size = size
        self.memory = memory
        self.transport = transport
        self.faster = faster
        self.network = network
        self.plain = plain
        self.never_stop_themselves = never_stop_themselves
        self.names = [f"node{number}" for number in range(1, nodes + 1)]
        self.meta = Process(self.directory, "meta", self.meta_arguments(f"{network.meta if network else '127.0.0.1'}:0"),
                            "listening on")
        self.nodes = {}
        self.is_orderly = True

    def meta_arguments(self, listen):
        """Returns the arguments of the metadata service."""
        return ["meta", "--listen", listen, "--store", str(self.disk / "store"),
                "--secret", str(self.secret), "--faster", str(self.faster),
                *(["--plain"] if self.plain else []),
                *(["--insecure"] if self.network else [])]

    def mount(self, number):
        """Returns the mount point of a node, counted from 1."""
        return self.directory / f"mount{number}"

    def mounts(self):
        """Returns all mount points."""
        return [self.mount(number + 1) for number in range(len(self.names))]

    def device(self, number):
        """Returns the backing file of a node."""
        return self.disk / f"device{number}"

    def node(self, number):
        """Returns a node's process."""
        return self.nodes[number]

    def configure(self, number):
        """Writes a node's configuration. Returns its path."""
        self.mount(number).mkdir(exist_ok=True)
        lines = [f'name = "node{number}"', f'meta = "{self.address}"',
                 f'secret = "{self.secret}"', f'mount = "{self.mount(number)}"',
                 f'transport = "{self.transport}"', "allow_other = true",
                 f"faster = {self.faster}",
                 *(self.network.configure(number) if self.network else []),
                 *(["plain = true"] if self.plain else []),
                 *(["stops_itself = false"] if number in self.never_stop_themselves else []),
                 "[[device]]", f'size = "{self.size}"']
        if not self.memory:
            lines.append(f'path = "{self.device(number)}"')
        path = self.directory / f"node{number}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def __enter__(self):
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # The end of a stopped test also ends its processes.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            self.meta.start()
            self.address = self.meta.wait_ready().split()[-1]
            # A restart must come back under the same address.
            self.meta.arguments = self.meta_arguments(self.address)
            for number in range(1, len(self.names) + 1):
                self.prepare(number).start()
            for node in self.nodes.values():
                node.wait_ready()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def prepare(self, number):
        """Returns a node's process, not started yet."""
        self.nodes[number] = Process(self.directory, f"node{number}",
                                     ["node", str(self.configure(number))], "ready ")
        return self.nodes[number]

    def add_node(self):
        """Starts one more node."""
        number = len(self.names) + 1
        self.names.append(f"node{number}")
        node = self.prepare(number)
        node.start()
        node.wait_ready()
        return node

    def restart(self, process):
        """Starts a process that was killed, and waits until it is ready."""
        number = next((n for n, node in self.nodes.items() if node is process), None)
        if number is not None:
            self.unmount(number)
        process.start()
        process.wait_ready()

    def unmount(self, number):
        """Removes the mount of a dead process."""
        subprocess.run(["umount", "-l", str(self.mount(number))], stderr=subprocess.DEVNULL,
                       check=False)

    def __exit__(self, kind, value, trace):
        for node in self.nodes.values():
            self.is_orderly &= node.stop() or kind is not None
        self.is_orderly &= self.meta.stop() or kind is not None
        for number in self.nodes:
            self.unmount(number)
        if kind is not None:
            for process in [self.meta, *self.nodes.values()]:
                print(f"--- end of {process.name}'s log\n{process.tail()}")
        elif not self.is_orderly:
            raise RuntimeError("a process could not be ended in order:\n" + "\n".join(
                f"--- {p.name}\n{p.tail(5)}" for p in [self.meta, *self.nodes.values()]))


class Table:
    """Counts the errors in many rounds of several checks, and prints them."""

    def __init__(self):
        self.rows = {}

    def check(self, name, holds):
        """Counts one round of a check."""
        wrong, rounds = self.rows.get(name, (0, 0))
        self.rows[name] = (wrong + (not holds), rounds + 1)

    def finish(self):
        """Prints the table; ends the program with 1 if anything went wrong."""
        width = max(map(len, self.rows))
        for name, (wrong, rounds) in self.rows.items():
            print(f"{name:{width}}  {wrong} / {rounds}")
        if any(wrong for wrong, _ in self.rows.values()):
            print("something was wrong", file=sys.stderr)
            sys.exit(1)
