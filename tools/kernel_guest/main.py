"""The command line of kernel-guest."""
import argparse
import signal
import sys
import tempfile
from pathlib import Path

from .debian import DebianError
from .image import cache_directory, open_image, say
from .kernels import with_kernel
from .machine import GuestError, Machine, Timeout, free_port, make_disk, write_job

TIMED_OUT, FAILED = 124, 125

DESCRIPTION = """\
Runs SCRIPT as root under a Debian kernel in QEMU, with its output as this program's output. The
first run fetches the needed packages from Debian's archive and keeps them in a cache; nothing is
installed on the host, and neither root rights nor KVM are needed.

The guest has busybox, btrfs-progs, dash, dmsetup, e2fsprogs, fio, keyutils, kmod, ktls-utils, mount, nvme-cli
and all kernel modules. It reaches this machine's loopback address, and nothing else, as 10.0.2.2.
"""

EPILOG = """\
exit status: that of SCRIPT (with --then, that of CMD once SCRIPT has succeeded); 124 after the time
limit; 125 when the guest could not be created or died, with the end of its console as output

examples:
  kernel-guest build
  kernel-guest run check.sh 10.0.2.2 4420
  kernel-guest run --forward 0:4420 --then 'check 127.0.0.1 $PORT_4420' export.sh
"""


def forward(text):
    """Parses HOSTPORT:GUESTPORT; host port 0 or none means any free one."""
    host, _, guest = text.rpartition(":")
    return int(host or 0), int(guest)


def added(text):
    """Parses HOSTPATH[:GUESTPATH]; without GUESTPATH the file goes to /root."""
    host, _, guest = text.partition(":")
    if not Path(host).exists():
        raise argparse.ArgumentTypeError(f"{host} does not exist")
    return host, guest or f"root/{Path(host).name}"


def disk_bytes(text):
    """Parses a number of bytes, with an optional K, M or G at its end."""
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:])
    if unit is None or not text[:-1].isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: a size is like 500M or 1G")
    return int(text[:-1]) << unit


def arguments():
    """Parses the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="kernel-guest", description=DESCRIPTION, epilog=EPILOG,
                                     formatter_class=raw)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    build = commands.add_parser("build", help="fill the cache and show what is in it")
    build.add_argument("--refresh", action="store_true", help="fetch all anew")
    run = commands.add_parser("run", help="run SCRIPT in a new guest", epilog=EPILOG,
                              formatter_class=raw)
    run.add_argument("--forward", metavar="HOSTPORT:GUESTPORT", type=forward, action="append",
                     default=[], help="lead 127.0.0.1:HOSTPORT to the guest's TCP port; "
                     "HOSTPORT 0 takes a free one (see --then)")
    run.add_argument("--then", metavar="CMD", help="after SCRIPT has succeeded run this shell "
                     "command on the host while the guest stays up, with PORT_<GUESTPORT> set")
    run.add_argument("--add", metavar="HOSTPATH[:GUESTPATH]", type=added, action="append",
                     default=[], help="copy a file or directory into the guest, by default to "
                     "/root")
    run.add_argument("--disk", metavar="SIZE", type=disk_bytes, help="an empty disk of SIZE bytes, /dev/vdb in the "
                     "guest, which is gone with it (1G, 500M)")
    run.add_argument("--timeout", metavar="SECONDS", type=float, default=300.0,
                     help="for all, --then included (default 300)")
    run.add_argument("--memory", metavar="SIZE", default="1G", help="(default 1G)")
    run.add_argument("--cpus", metavar="N", type=int, default=1, help="(default 1)")
    run.add_argument("--kernel", metavar="SUITE", help="the kernel of another release of Debian: bullseye "
                     "(5.10), bookworm (6.1), trixie-backports")
    run.add_argument("--flavour", choices=("cloud", "amd64"), default="cloud", help="amd64: the kernel for real machines, "
                     "with RDMA's modules, and the guest has rdma-core and iproute2")
    run.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto",
                     help="auto takes KVM where the processor backs it, else emulation")
    run.add_argument("-v", "--verbose", action="store_true", help="show QEMU's command line")
    run.add_argument("script", metavar="SCRIPT", type=Path)
    run.add_argument("args", metavar="ARG", nargs=argparse.REMAINDER)
    return parser.parse_args()


def run(options):
    """Runs the script in a new guest."""
    if not options.script.is_file():
        raise GuestError(f"{options.script} is not a file")
    image = open_image(cache_directory())
    if options.kernel or options.flavour != "cloud":
        image = with_kernel(image, cache_directory(), options.kernel, options.flavour)
    forwards = [(host or free_port(), guest) for host, guest in options.forward]
    with tempfile.TemporaryDirectory(prefix="kernel-guest-") as scratch:
        scratch = Path(scratch)
        write_job(scratch / "job", options.script, options.args, options.add)
        if options.disk:
            make_disk(scratch / "disk", options.disk)
        with Machine(image, scratch, options, forwards) as machine:
            try:
                status = machine.run_script()
                if status == 0 and options.then:
                    ports = {f"PORT_{guest}": str(host) for host, guest in forwards}
                    status = machine.run_on_host(options.then, ports)
                return status if status >= 0 else 128 - status
            except (GuestError, Timeout):
                machine.copy()
                machine.show_console()
                raise


def build(options):
    """Fills the cache."""
    image = open_image(cache_directory(), options.refresh)
    print(f"kernel  {image.release}\nRAM disk {image.initrd.stat().st_size >> 20} MiB\n"
          f"cache   {image.initrd.parent}")
    return 0


def main():
    """Runs the command line; returns the exit status."""
    options = arguments()
    # As an exception, so that the guest and the scratch directory are cleaned up on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return run(options) if options.command == "run" else build(options)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Timeout:
        say(f"the time limit of {options.timeout:g} s was reached")
        return TIMED_OUT
    except (DebianError, GuestError, OSError) as error:
        say(error)
        return FAILED
