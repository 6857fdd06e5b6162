"""A small table: the cost of access to another node's device, against the node's own.

One machine has all nodes, connected by veth or loopback: the numbers show the cost of the path,
not that of a network. fio reads and writes with O_DIRECT, two seconds each.
"""
import json
import os
import re
import select
import shutil
import subprocess
import time
import uuid

from .processes import Failed, run, start

SECONDS = 2
FILE_MIB = 128
# (name, fio's and perf's pattern, block size, queue depth)
LOADS = (("4 KiB random read, depth 1", "randread", "4k", 1),
         ("4 KiB random read, depth 16", "randread", "4k", 16),
         ("1 MiB read, depth 4", "read", "1M", 4),
         ("1 MiB write, depth 4", "write", "1M", 4))


def fio(path, pattern, size, depth):
    """Runs fio on a file. Returns (bytes per second, operations per second, mean latency in µs)."""
    words = ["fio", "--name=demo", f"--filename={path}", f"--rw={pattern}", f"--bs={size}",
             f"--iodepth={depth}", "--ioengine=io_uring", "--direct=1", f"--size={FILE_MIB}M",
             "--time_based", f"--runtime={SECONDS}", "--output-format=json"]
    text = run(words, timeout=60).decode()
    job = json.loads(text[text.index("{"):])["jobs"][0]
    side = job["read" if "read" in pattern else "write"]
    return side["bw_bytes"], side["iops"], side["clat_ns"]["mean"] / 1000


def mounts(cluster):
    """Runs fio on a file on node 2, from node 2 and from node 3."""
    path = os.path.join(cluster.mount(2), "measure")
    with open(path, "wb") as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    rows = []
    for name, pattern, size, depth in LOADS:
        if pattern == "write":
            # Writes go to the writer's own device, so there is no remote write.
            continue
        local = fio(path, pattern, size, depth)
        remote = fio(os.path.join(cluster.mount(3), "measure"), pattern, size, depth)
        rows.append((name, local, remote))
    os.remove(path)
    return rows


class BlockTarget:
    """`tsumugi target` on a file of its own, in the network of node 1."""

    def __init__(self, cluster, scratch):
        self.program = cluster.program
        self.path = scratch / "block"
        self.here = cluster.nodes[0]["namespace"]
        self.there = cluster.nodes[1]["namespace"]
        self.nqn = "nqn.2026-01.io.tsumugi:demo"
        self.uuid = str(uuid.uuid4())
        self.child = None
        self.address = None

    def serve(self):
        """Starts it, and reads its address."""
        words = [self.program, "target", "--nqn", self.nqn,
                 "--namespace", f"file:{self.path},size={FILE_MIB}M,uuid={self.uuid}"]
        if self.here:
            words += ["--listen", "10.72.0.1:4421", "--network-namespace", self.here, "--insecure"]
        else:
            words += ["--listen", "127.0.0.1:0"]
        self.child = start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        deadline, said = time.monotonic() + 20, b""
        while time.monotonic() < deadline:
            if select.select([self.child.stdout], [], [], 0.1)[0]:
                piece = os.read(self.child.stdout.fileno(), 4096)
                said += piece
                found = re.search(rb"(\d+\.\d+\.\d+\.\d+):(\d+)", said)
                if found and found.group(2) != b"0":
                    self.address = (found.group(1).decode(), found.group(2).decode())
                    return
                if not piece:
                    break
        raise Failed(f"the target does not start: {said.decode(errors='replace')}")

    def stop(self):
        """Ends it."""
        self.child.terminate()
        self.child.communicate(timeout=20)

    def perf(self, pattern, size, depth):
        """Runs `tsumugi nvme perf` from the network of node 2."""
        words = [self.program, "nvme", "perf", "-a", self.address[0], "-s", self.address[1],
                 "-n", self.nqn, "--rw", pattern, "--bs", size, "--iodepth", depth,
                 "--runtime", SECONDS, "--json"]
        if self.there:
            words += ["--network-namespace", self.there]
        if pattern == "write":
            words += ["--destroy", self.uuid]
        return numbers(json.loads(run(words, timeout=60)))


def numbers(result):
    """Returns (bytes per second, operations per second, mean latency in µs) from perf's JSON."""
    return result["mib_per_s"] * (1 << 20), result["iops"], result["latency_us"]["avg"]


def blocks(cluster, scratch):
    """Runs fio on a file, and our host and target on the same file from another node."""
    target = BlockTarget(cluster, scratch)
    target.serve()
    remote = [target.perf(*load[1:]) for load in LOADS]
    target.stop()
    local = [fio(target.path, *load[1:]) for load in LOADS]
    return [(load[0], near, far) for load, near, far in zip(LOADS, local, remote)]


def has_fio():
    """Returns whether fio is installed."""
    return shutil.which("fio") is not None
