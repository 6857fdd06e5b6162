"""The demo from beginning to end."""
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import containers, manifest, measure, report
from .cluster import Cluster
from .job import RECORD_BYTES, RECORDS_MAX
from .processes import Failed, Interrupted, catch_signals, end_all, finish, ignore_signals, start

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_DATA = "/usr/share/doc"
DATA_BYTES_MAX = 4 << 30
RANKS = 2
JOB_WITHIN_SECONDS = 600


def main(usage):
    """Runs the demo. Returns the exit status."""
    if len(sys.argv) > 1:
        print(usage, file=sys.stderr)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    catch_signals()
    demo = Demo()
    status = 1
    try:
        demo.run()
        status = 0 if demo.checks.all_held() else 1
    except Interrupted as signal_name:
        print(f"\ndemo: stopped by {signal_name}; cleaning up", file=sys.stderr)
        status = 130
    except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        print(f"\ndemo: FAILED: {error}", file=sys.stderr)
        demo.show_logs()
    finally:
        ignore_signals()
        if not demo.clean_up():
            status = status or 1
    if status == 0:
        print("\nevery check held; nothing is left behind")
    return status


class Demo:
    """One run."""

    def __init__(self):
        program = os.environ.get("TSUMUGI") or ROOT / "target/release/tsumugi"
        self.program = Path(program).resolve()
        self.data = Path(os.environ.get("DATA") or DEFAULT_DATA).resolve()
        self.checks = report.Checks()
        self.scratch = None
        self.manifest = None
        self.cluster = None

    def run(self):
        """Does all of it, in order."""
        if not os.access(self.program, os.X_OK):
            raise Failed(f"{self.program} is not there: run make build")
        # Not /tmp, which is in memory on many machines.
        temporary = os.environ.get("TMPDIR") or "/var/tmp"
        self.scratch = Path(tempfile.mkdtemp(prefix="tsumugi-demo-", dir=temporary))
        used = self.take_input()
        runtime, interpreter = self.container()
        self.bring_up(used)
        staged = self.stage_in()
        job_seconds = self.job(runtime, interpreter)
        taken_out = self.stage_out()
        self.compare()
        self.counts(used, staged, job_seconds, taken_out)
        self.measure()

    def take_input(self):
        """Copies the input tree, which others may change meanwhile; returns the bytes that it takes."""
        try:
            self.manifest = manifest.freeze(self.data, self.scratch / "input", DATA_BYTES_MAX)
        except manifest.TooLarge:
            raise Failed(f"{self.data} has more than {report.size(DATA_BYTES_MAX)}, which is all that the "
                         "demo takes: name a smaller tree with DATA=DIR") from None
        if not self.manifest.digests:
            raise Failed(f"{self.data} has no files: name another tree with DATA=DIR")
        used = self.manifest.used_bytes
        report.say(f"input: a copy of {self.data}, {len(self.manifest.digests)} files, {report.size(used)}")
        if self.manifest.left_out:
            report.say(f"  {len(self.manifest.left_out)} entries vanished or cannot be read, "
                       f"such as {self.manifest.left_out[0]}")
        return used

    def container(self):
        """Returns an image, and a runtime for it."""
        image = self.scratch / "image"
        interpreter = containers.make_image(image)
        runtime, complaints = containers.choose(image, interpreter, self.scratch,
                                                 os.environ.get("CONTAINER", ""))
        report.say(f"containers: {runtime.name}")
        if runtime.name == "plain namespaces":
            for complaint in complaints:
                report.say(f"  not {complaint}")
        return runtime, interpreter

    def bring_up(self, used):
        """Starts three nodes. Inputs, outputs and files of the measurements must fit on any one."""
        shared = RECORD_BYTES * RECORDS_MAX
        size = 2 * used + shared + (2 * measure.FILE_MIB << 20) + (256 << 20)
        size = (size + (64 << 20) - 1) >> 26 << 26
        self.cluster = Cluster(self.program, f"demo-{os.getpid()}", 3, size,
                               self.scratch / "devices")
        up = self.cluster.up()
        has_namespaces = self.cluster.nodes[0]["namespace"] is not None
        place = "in network namespaces of their own" if has_namespaces else "on loopback ports"
        report.say(f"3 nodes {place}, {report.size(size)} each: backing files written in "
                   f"{up['prepare_seconds']:.2f} s, ready in {up['ready_seconds']:.2f} s")
        for node in self.cluster.nodes:
            report.say(f"  {node['name']}  {node['mount']}")

    def stage_in(self):
        """Copies the input tree in, through node 1."""
        mount = Path(self.cluster.mount(1))
        summary = self.cluster.copy(self.scratch / "input", mount / "input")
        report.say(f"staged in through node 1: {report.copied(summary)}")
        self.checks.hold("every staged file has the digest of its source",
                         summary["failures"] == 0 and summary["verified"] > 0)
        (mount / "output").mkdir()
        return summary

    def job(self, runtime, interpreter):
        """Runs the job on nodes 2 and 3 at the same time. Returns the seconds."""
        begin = time.monotonic()
        ranks = []
        for rank in range(RANKS):
            words = [interpreter, "-I", "/job.py", str(rank), str(RANKS), "/data/input",
                     "/data/output"]
            ranks.append(runtime.start(self.scratch / "image", self.cluster.mount(rank + 2), words,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        for rank, child in enumerate(ranks):
            said = finish(child, f"the job on node {rank + 2}", JOB_WITHIN_SECONDS)
            report.say(f"job on node {rank + 2}, in {runtime.name}: {said.decode().strip()}")
        seconds = time.monotonic() - begin
        report.say(f"both ranks done in {seconds:.2f} s")
        return seconds

    def stage_out(self):
        """Copies the results out, through node 1."""
        summary = self.cluster.copy(Path(self.cluster.mount(1)) / "output", self.scratch / "output")
        report.say(f"staged out through node 1: {report.copied(summary)}")
        self.checks.hold("every file staged out has the digest of what was read",
                         summary["failures"] == 0 and summary["verified"] > 0)
        return summary

    def compare(self):
        """Compares with the digests taken at first, and byte for byte with the same job on the local disk."""
        wrong = manifest.wrong_outputs(self.manifest.digests, self.scratch / "output" / "files")
        for path in wrong[:10]:
            report.say(f"  was not read as it was staged: {path}")
        self.checks.hold("the job read every input as it was before staging", not wrong)
        local = self.scratch / "local"
        local.mkdir()
        job = Path(__file__).with_name("job.py")
        begin = time.monotonic()
        ranks = [start([sys.executable, "-I", job, rank, RANKS, self.scratch / "input", local],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(RANKS)]
        for child in ranks:
            finish(child, "the job on the local disk", JOB_WITHIN_SECONDS)
        seconds = time.monotonic() - begin
        files, different = compare_trees(local, self.scratch / "output")
        report.say(f"the same job on the local disk: {seconds:.2f} s; {files} files compared")
        for path in different[:10]:
            report.say(f"  differs: {path}")
        self.checks.hold("results equal the local disk's byte for byte", files > 1 and not different)

    def counts(self, used, staged, job_seconds, taken_out):
        """Prints the bytes by origin and destination."""
        status, clients, wrong = self.cluster.agreed_counts()
        report.show_counts(status, clients)
        for line in wrong:
            report.say(f"  {line}")
        self.checks.hold("targets' own counts equal the clients'", not wrong)
        remote = sum(d["read_remote_bytes"] for d in status["devices"])
        self.checks.hold("nodes 2 and 3 read the inputs over NVMe/TCP", remote >= used)
        refused = sum(device["refused"] for device in status["devices"])
        self.checks.hold("no admitted host was refused", refused == 0)
        operations = sum(device["commands"] for device in status["devices"])
        seconds = staged["seconds"] + job_seconds + taken_out["seconds"]
        report.say(f"{operations} device commands in {seconds:.1f} s of work; "
                   f"{status['meta']['calls']} calls to the metadata service, "
                   f"{status['meta']['transactions']} transactions")

    def measure(self):
        """Measures local against remote access."""
        if not measure.has_fio():
            report.say("no table of local against remote: fio is not installed")
            return
        report.show_table("block devices: file by fio, and the same over NVMe/TCP by nvme perf",
                          measure.blocks(self.cluster, self.scratch))
        report.show_table("mounts: fio on a file that lies on node 2, from nodes 2 and 3",
                          measure.mounts(self.cluster))

    def show_logs(self):
        """Prints the last output of the job's programs."""
        if self.cluster is None or not self.cluster.nodes:
            return
        directory = Path(self.cluster.nodes[0]["mount"]).parents[1]
        for log in sorted(directory.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-5:]
            for line in lines:
                print(f"  {log.name}: {line}", file=sys.stderr)

    def clean_up(self):
        """Removes everything. Returns whether that worked."""
        end_all()
        containers.remove_all()
        is_clean = True
        try:
            if self.cluster:
                self.cluster.down()
        except (Failed, OSError, subprocess.SubprocessError) as error:
            print(f"demo: {error}", file=sys.stderr)
            is_clean = False
        end_all()
        if self.scratch and not mounts_below(self.scratch):
            shutil.rmtree(self.scratch, ignore_errors=True)
        if self.scratch and self.scratch.exists():
            print(f"demo: left behind: {self.scratch}", file=sys.stderr)
            is_clean = False
        return is_clean


def compare_trees(one, other):
    """Returns (number of files, relative paths that are not the same in both)."""
    def files(top):
        return {os.path.relpath(os.path.join(directory, name), top)
                for directory, _names, names in os.walk(top) for name in names}
    left, right = files(one), files(other)
    different = sorted(left ^ right)
    for path in sorted(left & right):
        if not filecmp.cmp(os.path.join(one, path), os.path.join(other, path), shallow=False):
            different.append(path)
    return len(left & right), different


def mounts_below(directory):
    """Returns whether anything is mounted below a directory."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return any(line.split()[4].startswith(f"{directory}/") for line in file)
