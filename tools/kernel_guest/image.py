"""Creates the image from which a guest boots, once per version of this tool, and keeps it in a cache.

Two trees come out of the same packages:

tree/     everything unpacked; QEMU is run from here with its own loader and libraries, so that
          the host's libraries do not matter
guest/    the guest's root: the wanted programs, only those libraries that they are linked
          against, all kernel modules, and busybox for the rest

guest/ is packed into an initial RAM disk. It is the same for all runs: files that differ from run to run (the
script, added files) reach the guest as a tar archive on a disk.
"""
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import debian

HOST_PACKAGES = ("linux-image-cloud-amd64", "qemu-system-x86")
# dash, because busybox's own shell prefers busybox's programs to the real ones.
GUEST_PACKAGES = ("btrfs-progs", "busybox-static", "dash", "dmsetup", "e2fsprogs", "fio", "keyutils", "kmod",
                  "ktls-utils", "mount", "nvme-cli")
INIT = Path(__file__).with_name("init")
LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
UNWANTED = ("usr/share/bash-completion", "usr/share/doc", "usr/share/locale", "usr/share/man")

GUEST_DIRECTORIES = ("dev", "etc/nvme", "mnt", "proc", "root", "run", "sys", "tmp", "var/lib")
HOST_UUID = "5a7e1d0c-6b1f-4c55-9a0e-0d6f2a1b7c31"
GUEST_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": "127.0.0.1 localhost guest\n10.0.2.2 host\n",
    "etc/nvme/hostid": f"{HOST_UUID}\n",
    "etc/nvme/hostnqn": f"nqn.2014-08.org.nvmexpress:uuid:{HOST_UUID}\n",
}


class Image:
    """The finished image in the directory `top`."""

    def __init__(self, top):
        self.tree = top / "tree"
        self.initrd = top / "initrd"
        self.kernel, = self.tree.glob("boot/vmlinuz-*")
        self.release = self.kernel.name.partition("-")[2]

    def run(self, *words):
        """Returns a command that runs a program of the tree, given as options of the loader and a path."""
        # Ceph's libraries name their directory as an absolute path, which is the host's.
        path = f"{self.tree / LIBRARIES}:{self.tree / LIBRARIES / 'ceph'}"
        return [self.tree / LOADER, "--inhibit-cache", "--library-path", path, *words]


def cache_directory():
    """Returns the directory of the image."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "tsumugi", "kernel-guest")


def open_image(top, refresh=False):
    """Returns the image in the cache `top`, and creates it when it is missing or outdated."""
    top.mkdir(parents=True, exist_ok=True)
    recipe = b"".join(Path(module.__file__).read_bytes() for module in
                      (debian, sys.modules[__name__])) + INIT.read_bytes()
    name = "image-" + hashlib.sha256(recipe).hexdigest()[:12]
    with open(top / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if refresh or not (top / name).exists():
            for old in (*top.glob("image-*"), top / "part"):
                shutil.rmtree(old, ignore_errors=True)
            make(top / "part")
            (top / "part").rename(top / name)
    return Image(top / name)


def make(top):
    """Makes the image in the new directory `top`."""
    say(f"fetching QEMU, the kernel and the guest's programs (Debian {debian.SUITE}, 100 MB)")
    debs = debian.fetch(top / "apt", (*HOST_PACKAGES, *GUEST_PACKAGES))
    debian.unpack(debs, top / "tree")
    guest = top / "guest"
    debian.unpack([deb for deb in debs if deb.name.partition("_")[0] in GUEST_PACKAGES], guest)
    shutil.rmtree(top / "apt")

    say("making the guest's RAM disk")
    image = Image(top)
    populate(image, guest)
    pack(guest, image.initrd)
    shutil.rmtree(guest)


def populate(image, guest):
    """Completes the guest's root."""
    for name in UNWANTED:
        shutil.rmtree(guest / name, ignore_errors=True)
    for name in GUEST_DIRECTORIES:
        (guest / name).mkdir(parents=True, exist_ok=True)
    for name, text in GUEST_FILES.items():
        (guest / name).write_text(text)
    shutil.copy2(INIT, guest / "init")
    (guest / "init").chmod(0o755)
    for library in libraries(image, guest):
        name = library.relative_to(image.tree)
        (guest / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, guest / name)
    shutil.copy2(image.tree / LOADER, guest / LOADER)

    shutil.move(image.tree / "usr/lib/modules", guest / "usr/lib/modules")
    depmod = image.run(image.tree / "usr/sbin/depmod", "-b", guest, image.release)
    subprocess.run(depmod, check=True)

    busybox = guest / "usr/bin/busybox"
    applets = subprocess.run([busybox, "--list-full"], stdout=subprocess.PIPE, text=True,
                             check=True).stdout.split()
    for applet in applets:
        # busybox names them as bin/NAME or usr/bin/NAME; here all of it is below usr.
        path = guest / "usr" / (applet[4:] if applet.startswith("usr/") else applet)
        with contextlib.suppress(FileExistsError):
            path.symlink_to("/usr/bin/busybox")
    with contextlib.suppress(FileExistsError):
        (guest / "usr/bin/sh").symlink_to("dash")


def libraries(image, guest):
    """Returns the shared libraries that the guest's programs are linked against."""
    found = set()
    for path in sorted(guest.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        listed = subprocess.run(image.run("--list", path), stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True).stdout
        for name, library in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x|$)", listed, re.MULTILINE):
            if image.tree not in Path(library).parents:
                raise debian.DebianError(f"{path.name} needs {name}, which is not among the "
                                         f"packages ({library})")
            found.add(Path(library))
    return sorted(found)


def pack(root, archive):
    """Packs a directory into the kernel's format of an initial RAM disk, owned by root."""
    names = "\n".join(sorted(str(path.relative_to(root)) for path in root.rglob("*")))
    with open(archive, "wb") as out:
        subprocess.run([root / "usr/bin/busybox", "cpio", "-o", "-H", "newc", "-R", "0:0"],
                       cwd=root, input=names.encode(), stdout=out, stderr=subprocess.DEVNULL,
                       check=True)


def say(*words):
    """Prints the reason of a long wait."""
    print("kernel-guest:", *words, file=sys.stderr, flush=True)
