"""Fetches Debian packages without touching the host's package state.

apt-get is run with a state directory of its own, so no root rights are needed, nothing is
installed on the host, and the release does not have to be the host's. apt checks the archive's
signature with the keyring that Debian installs, and each package against the signed index.

All wanted packages and their dependencies go into one directory, except those in ABSENT: packages that only
the installation of others needs are declared as installed already.
"""
import subprocess
from pathlib import Path

SUITE = "trixie"
MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

ABSENT = ("adduser", "coreutils", "dpkg", "initramfs-tools", "ipxe-qemu", "passwd", "python3",
          "systemd", "tar", "udev", "uuid-runtime")

CONFIG = """\
#clear DPkg;
#clear APT::Update;
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::State "{top}";
Dir::State::status "{top}/status";
Dir::State::lists "{top}/lists";
Dir::Cache "{top}/cache";
Dir::Etc::sourcelist "{top}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
"""

ABSENT_ENTRY = """\
Package: {name}
Status: install ok installed
Version: 9999
Architecture: amd64
Multi-Arch: foreign
Maintainer: none
Description: not needed in the guest

"""


class DebianError(Exception):
    """A package is not available; the text has the reason and the fix."""


def mirror():
    """Returns the Debian mirror that the host uses, or Debian's own."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE)", "Label: Debian"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return next(iter(listed.stdout.split()), MIRROR)


def prepare(top):
    """Lays out apt's private state in the directory `top`."""
    if not KEYRING.exists():
        raise DebianError(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    for name in ("lists/partial", "cache/archives/partial"):
        (top / name).mkdir(parents=True)
    (top / "status").write_text("".join(ABSENT_ENTRY.format(name=name) for name in ABSENT))
    (top / "sources.list").write_text(
        f"deb [arch=amd64 signed-by={KEYRING}] {mirror()} {SUITE} main\n")
    (top / "apt.conf").write_text(CONFIG.format(top=top))


def apt(top, *args):
    """Runs apt-get on the private state; its messages go to stderr when it fails."""
    # apt reads -c after the host's own configuration, so the host's proxies apply, but not its directories.
    done = subprocess.run(["apt-get", "-qq", "-y", "-c", top / "apt.conf", *args], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode:
        raise DebianError(f"apt-get {' '.join(args)} failed; is the mirror reachable?\n"
                          + done.stdout.strip())


def fetch(top, packages):
    """Downloads packages and what they depend on into `top`: the paths of all .deb files."""
    prepare(top)
    apt(top, "update")
    apt(top, "--download-only", "install", *packages)
    return sorted((top / "cache/archives").glob("*.deb"))


def unpack(debs, root):
    """Unpacks .deb files into the directory `root`, which is merged under /usr as Debian's is."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
