"""A Slurm cluster for tests: a real munged, slurmctld and slurmd, each machine in namespaces of its own.

`enter()` starts the test again in a process and mount namespace: whatever it starts ends with it, and what it
mounts over /etc, /run or /var is seen by nobody else. A machine of the cluster is a network, mount and host name
namespace in there, with its own /run, /tmp, /var/tmp and /var/lib/tsumugi, an sshd, and the address 10.74.0.N; the
control machine is `ctl`. They share /srv, as a cluster shares its home directories, and nothing else. No address of
this machine is used.
"""
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from checks import ROOT, wait_until
from fabric import Fabric
from jobs import TSUMUGI
from namespaces import leave_fuse
from processes import living

CONTRIB = ROOT / "contrib/slurm"
INSIDE = "TSUMUGI_TEST_CLUSTER"
SHARED = Path("/srv")
USER, UID = "alice", 64711
PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
# States from which a job does not go on.
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "GONE")
# What each machine has of its own.
MACHINE = """
set -e
hostname {name}
ip link set lo up
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd /run/lock /run/munge
mount --bind {base}/munge /run/munge
mount --bind {base}/{name}/var-tmp /var/tmp
mount -t tmpfs -o mode=755 tmpfs /var/lib
mkdir /var/lib/tsumugi
mount --bind {base}/{name}/var-lib-tsumugi /var/lib/tsumugi
touch {base}/{name}/ready
exec sleep infinity
"""
CONFIGURATION = """
ClusterName=test
SlurmctldHost=ctl(10.74.0.254)
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=cred_expire=10
StateSaveLocation={base}/ctl/state
SlurmdSpoolDir={base}/%n/spool
SlurmctldPidFile={base}/ctl/state/pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={base}/ctl/state/slurmctld.log
SlurmdLogFile={base}/%n/slurmd.log
SlurmctldDebug=debug
SlurmdDebug=debug
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=1,batch_sched_delay=0,requeue_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=20
MinJobAge=60
OverTimeLimit=0
{more}
NodeName=DEFAULT CPUs=8 State=UNKNOWN Feature=tsumugi
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def enter():
    """Starts the test again in namespaces of its own, whose first process this is; returns in its child."""
    if INSIDE not in os.environ:
        os.environ[INSIDE] = str(Path.cwd())
        os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation",
                              "private", sys.executable, str(Path(sys.argv[0]).resolve()), *sys.argv[1:]])
    child = os.fork()
    if not child:
        leave_fuse()
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    # The first process of a namespace inherits what loses its parent; with it all others end.
    while True:
        try:
            pid, status = os.wait()
        except InterruptedError:
            continue
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xff)


def call(*words, **options):
    """Runs a program that has to succeed; returns what it prints."""
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(map(str, words))}: status {done.returncode}\n{done.stdout}")
    return done.stdout


class Cluster:
    """Machines `ctl`, `node1`, `node2`, ... with Slurm."""

    def __init__(self, nodes=2, configuration="", files=(), prepare=None):
        self.base = SHARED
        self.nodes = [f"node{number}" for number in range(1, nodes + 1)]
        self.configuration = configuration
        self.files = files
        # Called instead of installing contrib/slurm, before anything runs.
        self.prepare = prepare
        self.fabric = Fabric(lambda *words: self.run("ctl", *words), "10.74.0")
        self.holders = {}
        self.daemons = {}

    def start(self):
        """Makes the machines and starts Slurm on them; returns whether all nodes are there."""
        here = Path.cwd() / "cluster-files"
        here.mkdir()
        here.chmod(0o755)
        call("mount", "--bind", here, self.base)
        self.write_files()
        for number, name in enumerate(["ctl", *self.nodes]):
            self.make_machine(name, number or 254)
        self.start_daemon("ctl", "munged", "munged", "--foreground", "--force", f"--key-file={self.base}/munge.key",
                          f"--log-file={self.base}/munge/log", f"--seed-file={self.base}/munge/seed",
                          f"--pid-file={self.base}/munge/pid")
        wait_until((self.base / "munge/munge.socket.2").exists, 10)
        self.start_daemon("ctl", "slurmctld", "slurmctld", "-D", "-i")
        for name in self.nodes:
            self.start_slurmd(name)
            self.start_sshd(name)
        return wait_until(lambda: self.idle() == len(self.nodes), 30)

    def write_files(self):
        """Files of /etc and /usr/local that all machines see instead of this machine's."""
        for name in ("etc-slurm", "etc-ssh", "bin", "home", "munge", "root-home", "etc-tsumugi"):
            (self.base / name).mkdir(mode=0o755)
        (self.base / "munge.key").write_bytes(os.urandom(128))
        (self.base / "munge.key").chmod(0o400)
        addresses = [("ctl", 254), *((name, number) for number, name in enumerate(self.nodes, 1))]
        self.write("etc-hosts", "127.0.0.1 localhost\n" + "".join(f"10.74.0.{n} {name}\n" for name, n in addresses))
        home = self.base / "home"
        os.chown(home, UID, UID)
        self.write("etc-passwd", Path("/etc/passwd").read_text() + f"{USER}:x:{UID}:{UID}::{home}:/bin/bash\n")
        self.write("etc-group", Path("/etc/group").read_text() + f"{USER}:x:{UID}:\n")
        nodes = "".join(f"NodeName={name} NodeAddr=10.74.0.{n}\n" for name, n in addresses[1:])
        self.write("etc-slurm/slurm.conf", CONFIGURATION.format(base=self.base, nodes=nodes, more=self.configuration))
        for name, text in self.files:
            self.write(name, text)
        if not self.prepare:
            for path in CONTRIB.iterdir():
                if path.is_file():
                    shutil.copy(path, self.base / "etc-slurm")
            self.write("etc-tsumugi/slurm.conf", "size=32M\n")
        self.write_ssh()
        # As on a machine whose users may mount, whatever this one's allows.
        call("mknod", "-m", "666", self.base / "fuse", "c", "10", "229")
        (self.base / "bin/tsumugi").touch()
        call("mount", "--bind", TSUMUGI, self.base / "bin/tsumugi")
        self.cover_etc()
        for source, place in (("etc-slurm", "/etc/slurm"), ("etc-ssh", "/etc/ssh"), ("etc-hosts", "/etc/hosts"),
                              ("etc-passwd", "/etc/passwd"), ("etc-group", "/etc/group"), ("bin", "/usr/local/bin"),
                              ("root-home", "/root"), ("etc-tsumugi", "/etc/tsumugi"),
                              ("fuse", "/dev/fuse")):
            call("mount", "--rbind", self.base / source, place)
        os.environ.update(PATH=PATH, HOME="/root")
        if self.prepare:
            self.prepare(self)

    def cover_etc(self):
        """A copy of /etc, in this mount namespace only, that has room for more."""
        copy = self.base / "etc"
        call("cp", "-a", "/etc", copy)
        for name in ("slurm", "tsumugi"):
            (copy / name).mkdir(exist_ok=True)
        call("mount", "--bind", copy, "/etc")

    def write(self, name, text, mode=0o644):
        """Writes a file of the shared directory."""
        path = self.base / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def write_ssh(self):
        """Keys and configuration by which root of each machine reaches the others."""
        at = self.base / "etc-ssh"
        for key in ("host", "root"):
            call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at / key)
        # The same for SlurmUser, since nobody may use another's file.
        shutil.copy(at / "root", at / "slurm")
        shutil.chown(at / "slurm", "slurm")
        kind, host = (at / "host.pub").read_text().split()[:2]
        self.write("etc-ssh/known", f"* {kind} {host}\n")
        self.write("etc-ssh/authorized", (at / "root.pub").read_text())
        self.write("etc-ssh/sshd_config", "HostKey /etc/ssh/host\nAuthorizedKeysFile /etc/ssh/authorized\n"
                   "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
                   "PermitRootLogin prohibit-password\n"
                   f"SetEnv PATH={PATH}\n")
        self.write("etc-ssh/ssh_config", "Host *\n  IdentityFile /etc/ssh/%u\n  IdentitiesOnly yes\n"
                   "  UserKnownHostsFile /etc/ssh/known\n  LogLevel ERROR\n")

    def make_machine(self, name, number):
        """Namespaces with an address."""
        for directory in ("var-tmp", "var-lib-tsumugi", "spool", "state"):
            (self.base / name / directory).mkdir(parents=True)
        shutil.chown(self.base / name / "state", "slurm")
        (self.base / name / "var-tmp").chmod(0o1777)
        self.holders[name] = subprocess.Popen(
            ["unshare", "--mount", "--net", "--uts", "--propagation", "private", "sh", "-c",
             MACHINE.format(name=name, base=self.base)], stdin=subprocess.DEVNULL)
        if not wait_until((self.base / name / "ready").exists, 10):
            raise RuntimeError(f"{name} is not made")
        if name == "ctl":
            self.fabric.make()
            return
        self.fabric.join(number, self.holders[name].pid, lambda *words: self.run(name, *words))

    def words(self, machine, *words, user=None):
        """The words that run a program on a machine."""
        as_user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env", f"HOME={self.base}/home",
                   f"USER={USER}"] if user else []
        return ["nsenter", f"--target={self.holders[machine].pid}", "--mount", "--net", "--uts",
                f"--wd={self.base / 'home' if user else '/'}", "--", *as_user, *map(str, words)]

    def run(self, machine, *words, **options):
        """Runs a program on a machine that has to succeed; returns what it prints."""
        return call(*self.words(machine, *words), **options)

    def attempt(self, machine, *words, user=None, **options):
        """Runs a program on a machine; returns the finished process."""
        return subprocess.run(self.words(machine, *words, user=user), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=False, timeout=120, **options)

    def start_daemon(self, machine, name, *words):
        """Starts a daemon in the foreground."""
        with open(self.base / f"{name}.err", "a", encoding="utf-8") as log:
            self.daemons[name] = subprocess.Popen(self.words(machine, *words), stdin=subprocess.DEVNULL, stdout=log,
                                                  stderr=log, start_new_session=True)

    def start_slurmd(self, name):
        """Starts the slurmd of a node."""
        self.start_daemon(name, f"slurmd-{name}", "slurmd", "-D", "-N", name)

    def start_sshd(self, name):
        """Starts the sshd of a node."""
        self.start_daemon(name, f"sshd-{name}", "/usr/sbin/sshd", "-D", "-e")

    def stop(self):
        """Ends everything, and lets the files go."""
        for child in [*self.daemons.values(), *self.holders.values()]:
            child.kill()
        for child in [*self.daemons.values(), *self.holders.values()]:
            child.wait(10)

    def idle(self):
        """The number of nodes that wait for jobs."""
        done = self.attempt("ctl", "sinfo", "-h", "-N", "-o", "%T")
        return done.stdout.split().count("idle")

    def all_idle(self, seconds=40):
        """Waits until no node has a job any more."""
        return wait_until(lambda: self.idle() == len(self.nodes), seconds)

    def sbatch(self, *words, script=None, user=True):
        """Submits a job; returns its number."""
        text = ["--wrap", script] if script else []
        output = f"--output={self.base}/home/%j.out"
        done = self.attempt("ctl", "sbatch", "--parsable", output, *words, *text, user=user)
        if done.returncode:
            raise RuntimeError(f"sbatch: {done.stderr}")
        return int(done.stdout.split(";")[0])

    def show(self, job):
        """{field: value} of a job, or nothing if Slurm does not know it."""
        done = self.attempt("ctl", "scontrol", "show", "job", "-o", job)
        return dict(re.findall(r"(\S+?)=(\S*)", done.stdout)) if not done.returncode else {}

    def state(self, job):
        """A job's state."""
        return self.show(job).get("JobState", "GONE")

    def wait_state(self, job, states, seconds=40):
        """Waits for one of these states."""
        states = (states,) if isinstance(states, str) else states
        return wait_until(lambda: self.state(job) in states, seconds)

    def output(self, job):
        """What a job has printed."""
        path = self.base / f"home/{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def log(self, name, lines=200):
        """The end of a daemon's log."""
        path = self.base / (f"{name}/slurmd.log" if name in self.nodes else "ctl/state/slurmctld.log")
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def leftovers(self):
        """What jobs have left on the machines, in words."""
        left = []
        for name in ["ctl", *self.nodes]:
            mounts = self.run(name, "cat", "/proc/self/mountinfo").splitlines()
            left += [f"{name}: mount {line.split()[4]}" for line in mounts if "fuse.tsumugi" in line]
            found = self.find(name)
            left += [f"{name}: {path}" for path in found]
        return left + [f"process {pid}: {words}" for pid, words in tsumugi_processes().items()]

    def find(self, name):
        """Files below the places where jobs have theirs."""
        done = self.attempt(name, "find", "/run/tsumugi", "/tmp", "/var/tmp", "/var/lib/tsumugi", "-xdev",
                            "-mindepth", "1")
        empty = {"/var/lib/tsumugi/jobs"}
        for user in (UID, pwd.getpwnam("slurm").pw_uid):
            empty |= {f"/tmp/tsumugi-{user}", f"/var/tmp/tsumugi-{user}", f"/var/tmp/tsumugi-{user}/jobs"}
        return sorted(set(done.stdout.split()) - empty)

    def gone(self, seconds=40):
        """Waits until nothing is left; returns what is."""
        deadline = time.monotonic() + seconds
        while True:
            left = self.leftovers()
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)


def tsumugi_processes():
    """{process: command line} of all processes of the program in this process namespace."""
    return {pid: b" ".join(words).decode(errors="replace") for pid, words in living().items()
            if os.path.basename(words[0]) == b"tsumugi"}


def on_machine(cluster, name):
    """The processes of a machine, its first excepted: {process: name of the program}."""
    first = cluster.holders[name].pid
    network = os.readlink(f"/proc/{first}/ns/net")
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != first and os.readlink(entry / "ns/net") == network:
                found[int(entry.name)] = os.path.basename((entry / "cmdline").read_bytes().split(b"\0")[0]).decode()
        except OSError:
            continue
    return found
