"""Other kernels for the same guest: of other Debian releases, or with the modules of real machines.

Only the kernel and its modules are fetched; they are packed into an archive that follows the image's own
initial RAM disk, which kernels unpack one after the other. Each is kept in the cache beside the image.
"""
import fcntl
import os
import shutil
import subprocess

from . import debian
from .image import UNWANTED, pack, say

PACKAGES = {"cloud": "linux-image-cloud-amd64", "amd64": "linux-image-amd64"}
# Further packages of a guest with that kernel, and libraries that they load at run time.
PROGRAMS = {"cloud": (), "amd64": ("ibverbs-providers", "iproute2", "libibverbs1", "librdmacm1")}
# Drivers of a kernel for real machines that no virtual machine needs: most of its modules.
UNUSED = ("drivers/accel", "drivers/bluetooth", "drivers/comedi", "drivers/gpu", "drivers/hid", "drivers/hwmon", "drivers/iio",
          "drivers/input", "drivers/isdn", "drivers/leds", "drivers/media", "drivers/mfd", "drivers/mmc", "drivers/mtd",
          "drivers/net/ethernet", "drivers/net/wireless", "drivers/platform", "drivers/scsi", "drivers/staging",
          "drivers/usb", "drivers/video", "sound")


class OtherKernel:
    """An image with another kernel, in the directory `top`."""

    def __init__(self, image, top):
        self.image = image
        self.tree = image.tree
        self.initrd = top / "initrd"
        self.kernel, = top.glob("vmlinuz-*")
        self.release = self.kernel.name.partition("-")[2]

    def run(self, *words):
        """Does the same as the image's."""
        return self.image.run(*words)


def with_kernel(image, top, suite, flavour):
    """Returns the image with a suite's kernel of a flavour, made when it is missing in the cache `top`."""
    suite = suite or debian.SUITE
    name = suite if flavour == "cloud" else f"{suite}-{flavour}"
    place = top / "kernels" / f"{name}-{image.initrd.parent.name}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            part = place.parent / "part"
            shutil.rmtree(part, ignore_errors=True)
            make(image, part, suite, flavour)
            part.rename(place)
    return OtherKernel(image, place)


def make(image, top, suite, flavour):
    """Creates the image from which a guest with a suite's kernel boots, in the new directory `top`."""
    say(f"fetching the kernel of Debian {suite}, flavour {flavour} (60 to 120 MB)")
    debian.prepare(top / "apt")
    sources = top / "apt/sources.list"
    # The index of a suite expires, its packages do not.
    line = sources.read_text().replace("[", "[check-valid-until=no ")
    base = suite.removesuffix("-backports")
    # Backports lack the packages that they share with their release.
    sources.write_text("".join(line.replace(f" {debian.SUITE} ", f" {name} ") for name in dict.fromkeys((base, suite))))
    debian.apt(top / "apt", "update")
    debian.apt(top / "apt", "--download-only", "--target-release", suite, "install", PACKAGES[flavour], *PROGRAMS[flavour])
    fetched = sorted((top / "apt/cache/archives").glob("*.deb"))
    tree, programs = top / "tree", top / "programs"
    # From 7.3 on the kernel and its modules have packages of their own.
    kinds = ("linux-image-", "linux-binary-", "linux-modules-")
    debian.unpack([deb for deb in fetched if deb.name.startswith(kinds)], tree)
    debian.unpack([deb for deb in fetched if is_for_guest(deb, flavour)], programs)
    shutil.rmtree(top / "apt")
    kernel, release = binary(tree)
    kernel.rename(top / f"vmlinuz-{release}")

    say("making its RAM disk")
    guest = top / "guest"
    (guest / "usr/lib").mkdir(parents=True)
    # Before bookworm, packages have them outside usr; from 7.3 on their index is still there.
    for modules in {path.resolve() for path in tree.glob("**/lib/modules")}:
        shutil.copytree(modules, guest / "usr/lib/modules", dirs_exist_ok=True)
    (guest / "lib").symlink_to("usr/lib")
    if flavour != "cloud":
        for name in UNUSED:
            shutil.rmtree(guest / "usr/lib/modules" / release / "kernel" / name, ignore_errors=True)
        add_programs(programs, guest)
    subprocess.run(image.run(image.tree / "usr/sbin/depmod", "-b", guest, release), check=True)
    # The packer is the guest's own busybox.
    (guest / "usr/bin").mkdir(exist_ok=True)
    shutil.copy2(busybox(image, top), guest / "usr/bin/busybox")
    pack(guest, top / "modules")
    with open(top / "initrd", "wb") as out:
        for archive in (image.initrd, top / "modules"):
            with open(archive, "rb") as part:
                shutil.copyfileobj(part, out)
            # Archives begin at multiples of four bytes.
            out.write(bytes(-out.tell() % 4))
    os.remove(top / "modules")
    for rest in (guest, tree, programs):
        shutil.rmtree(rest)


def binary(tree):
    """Returns the kernel in an unpacked tree, and its release; from 7.3 on it is among its modules."""
    found = sorted(tree.glob("boot/vmlinuz-*"))
    if found:
        return found[0], found[0].name.partition("-")[2]
    kernel, = tree.glob("usr/lib/modules/*/vmlinuz")
    return kernel, kernel.parent.name


def is_for_guest(deb, flavour):
    """Returns whether a fetched package is one of the flavour's programs, or a library for them."""
    name = deb.name.partition("_")[0]
    is_library = name.startswith("lib") and name not in ("libc6", "libc-bin", "libc-l10n")
    return bool(PROGRAMS[flavour]) and (is_library or name in PROGRAMS[flavour])


def add_programs(programs, guest):
    """Moves programs, libraries and their settings into the guest's tree."""
    for name in UNWANTED:
        shutil.rmtree(programs / name, ignore_errors=True)
    for name in ("etc", "usr"):
        if (programs / name).is_dir():
            shutil.copytree(programs / name, guest / name, symlinks=True, dirs_exist_ok=True)


def busybox(image, top):
    """Returns the guest's busybox: the image's tree has it where its packages put it."""
    found = sorted(image.tree.glob("usr/bin/busybox"))
    if not found:
        raise debian.DebianError(f"no busybox in {image.tree}; kept in {top}")
    return found[0]
