"""One running guest: QEMU's command line, its output, its end.

QEMU writes the guest's output on its three virtio ports into plain files. QEMU drops data that the reader of a
pipe does not take at once, but never data for a file. So one loop without threads follows the files, and also
watches the time limit.

setpriv starts QEMU, so that the kernel always kills it when this process dies.
"""
import contextlib
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

PORTS = ("stdout", "stderr", "status")
POLL_SECONDS = 0.03
CONSOLE_LINES_SHOWN = 40
TERMINAL_CONTROL = re.compile(r"\x1b(\[[0-9;?=]*[A-Za-z]|c)|\r")
# no_timer_check: on a busy machine emulated ticks come too late for the kernel's test of its timer.
KERNEL_ARGUMENTS = ("console=ttyS0 no_timer_check panic=-1 oops=panic mitigations=off nokaslr quiet "
                    "random.trust_cpu=on net.ifnames=0 rdinit=/init")


class GuestError(Exception):
    """The guest could not be started or died."""


class Timeout(Exception):
    """The time limit was reached."""


def free_port():
    """Returns a free TCP port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def can_use_kvm():
    """Returns whether KVM runs on the processor's own virtualisation.

    /dev/kvm alone is not enough: nested software KVM offers it too and then cannot run an
    ordinary kernel.
    """
    flags = next((line.split() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("flags")), [])
    return ("vmx" in flags or "svm" in flags) and os.access("/dev/kvm", os.R_OK | os.W_OK)


def write_job(path, script, args, added):
    """Writes the tar archive that the guest unpacks: the script, its arguments, added files.

    `added` is a list of (path on the host, path in the guest).
    """
    shebang = script.read_bytes()[:2] == b"#!"
    words = ["/job/script", *args] if shebang else ["sh", "/job/script", *args]
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(script, "job/script", filter=executable)
        text = f"exec {shlex.join(words)}\n".encode()
        entry = tarfile.TarInfo("job/command")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
        for source, name in added:
            tar.add(source, name.lstrip("/"), filter=owned_by_root)


def make_disk(path, size):
    """Creates an empty disk for the guest, which takes space only for written data."""
    with path.open("xb") as file:
        file.truncate(size)


def owned_by_root(entry):
    """Makes root the owner of a tar entry."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def executable(entry):
    """Makes a tar entry executable, and root its owner."""
    entry.mode = 0o755
    return owned_by_root(entry)


class Machine:
    """A guest that runs a job; leaving the `with` block ends it.

    `forwards` is a list of (port on the host's loopback address, port in the guest).
    """

    def __init__(self, image, scratch, options, forwards):
        self.scratch = scratch
        self.console = scratch / "console"
        self.deadline = time.monotonic() + options.timeout
        for port in PORTS:
            (scratch / port).touch()
        self.streams = [((scratch / "stdout").open("rb"), sys.stdout.buffer),
                        ((scratch / "stderr").open("rb"), sys.stderr.buffer)]
        command = ["setpriv", "--pdeathsig", "KILL",
                   *qemu_command(image, scratch, options, forwards)]
        if options.verbose:
            print(shlex.join(map(str, command)), file=sys.stderr)
        with self.console.open("ab") as log:
            self.qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.qemu.kill()
        self.qemu.wait()
        self.copy()
        for source, _ in self.streams:
            source.close()

    def copy(self):
        """Passes on what the guest has written since the last time."""
        for source, sink in self.streams:
            text = source.read()
            if text:
                sink.write(text)
                sink.flush()

    def wait_for(self, condition):
        """Follows the guest until `condition()` is not None, and returns that."""
        while True:
            is_dead = self.qemu.poll() is not None
            found = condition()
            self.copy()
            if found is not None:
                return found
            if is_dead:
                raise GuestError("the guest died")
            if time.monotonic() > self.deadline:
                raise Timeout
            time.sleep(POLL_SECONDS)

    def exit_status(self):
        """Returns the script's exit status, None while it runs."""
        for line in (self.scratch / "status").read_text().splitlines():
            word, _, number = line.partition(" ")
            if word == "exit":
                return int(number)
        return None

    def run_script(self):
        """Waits for the script's end and returns its exit status."""
        return self.wait_for(self.exit_status)

    def run_on_host(self, command, environment):
        """Runs a shell command on the host while the guest stays up; returns its exit status."""
        # In a process group of its own, so that all its children can be ended with it.
        with subprocess.Popen(["setpriv", "--pdeathsig", "TERM", "sh", "-c", command],
                              env={**os.environ, **environment}, start_new_session=True) as child:
            try:
                return self.wait_for(child.poll)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)

    def show_console(self):
        """Shows the end of the guest's console, for a guest that failed."""
        text = TERMINAL_CONTROL.sub("", self.console.read_text(errors="replace"))
        for line in text.splitlines()[-CONSOLE_LINES_SHOWN:]:
            print("console|", line, file=sys.stderr)


def qemu_command(image, scratch, options, forwards):
    """QEMU's command line."""
    share = image.tree / "usr/share"
    accelerator = ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,la57=off"]
    if options.accel == "kvm" or (options.accel == "auto" and can_use_kvm()):
        accelerator = ["-accel", "kvm", "-cpu", "host"]
    net = "user,id=net,ipv6=off" + "".join(
        f",hostfwd=tcp:127.0.0.1:{host}-:{guest}" for host, guest in forwards)
    command = [
        *image.run(image.tree / "usr/bin/qemu-system-x86_64"),
        "-L", share / "qemu", "-L", share / "seabios", "-nodefaults", "-no-user-config",
        "-no-reboot", "-display", "none", *accelerator, "-machine", "q35,graphics=off", "-m", options.memory,
        "-smp", str(options.cpus), "-kernel", image.kernel, "-initrd", image.initrd,
        "-append", KERNEL_ARGUMENTS, "-serial", "chardev:console",
        "-chardev", f"file,id=console,append=on,path={scratch / 'console'}",
        "-netdev", net, "-device", "virtio-net-pci,romfile=,netdev=net",
        "-drive", f"if=none,id=job,format=raw,readonly=on,file={scratch / 'job'}",
        "-device", "virtio-blk-pci,drive=job", "-device", "virtio-serial-pci"]
    if options.disk:
        # cache=unsafe: the disk is not needed after the guest.
        command += ["-drive", f"if=none,id=disk,format=raw,cache=unsafe,file={scratch / 'disk'}",
                    "-device", "virtio-blk-pci,drive=disk"]
    for port in PORTS:
        command += ["-chardev", f"file,id={port},path={scratch / port}",
                    "-device", f"virtserialport,chardev={port},name={port}"]
    return command
