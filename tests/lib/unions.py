"""Unions for the tests of the whole system: mounting ours and the kernel's, and comparing trees."""
import contextlib
import hashlib
import os
import stat
import subprocess
import time
from pathlib import Path

TSUMUGI = os.environ.get("TSUMUGI", "tsumugi")
UNMOUNT_SECONDS = 60


def run(*command, check=True, **more):
    """Runs a command and returns it with its output."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if check and done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr}")
    return done


def options_of(lower, upper, work, more=""):
    """Returns the option string of a union."""
    layers = ":".join(str(layer) for layer in lower)
    text = f"lowerdir={layers}"
    if upper is not None:
        text += f",upperdir={upper},workdir={work}"
    return text + (f",{more}" if more else "")


def mount_ours(lower, upper, work, at, more=""):
    """Mounts a union of ours in the background, with a server of its own: it can be killed alone."""
    run(TSUMUGI, "union", "--own-process", "-o", options_of(lower, upper, work, more), at)


def server_of(at):
    """Returns the process that serves a union of ours."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if os.fsencode(str(at)) in words and b"-o" in words:
                return int(process.name)
    raise RuntimeError(f"no process serves {at}")


def lives(process):
    """Returns whether a process has not ended; one that only waits to be collected has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def unmount(at, server=None):
    """Unmounts, and waits until the server (if there is one) has ended."""
    run("umount", at)
    deadline = time.monotonic() + UNMOUNT_SECONDS
    while server is not None and lives(server):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server of {at} does not end")
        time.sleep(0.01)


@contextlib.contextmanager
def ours(lower, upper, work, at, more=""):
    """Mounts a union of ours for a block."""
    mount_ours(lower, upper, work, at, more)
    server = server_of(at)
    try:
        yield at
    except BaseException:
        run("umount", "-l", at, check=False)
        raise
    unmount(at, server)


@contextlib.contextmanager
def kernels(lower, upper, work, at, more=""):
    """Mounts the kernel's overlayfs for a block."""
    run("mount", "-t", "overlay", "none", at, "-o", options_of(lower, upper, work, more))
    try:
        yield at
    finally:
        run("umount", at)


def picture(root, times=True):
    """Returns everything that a program can see of a tree, by path; inode numbers as groups of links."""
    seen, groups = {}, {}

    def add(path, name):
        found = os.lstat(path)
        kind = stat.S_IFMT(found.st_mode)
        facts = {"mode": oct(found.st_mode), "owner": (found.st_uid, found.st_gid)}
        if kind == stat.S_IFREG:
            facts["data"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
            facts["size"] = found.st_size
            facts["nlink"] = found.st_nlink
        if kind == stat.S_IFLNK:
            facts["target"] = os.readlink(path)
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            facts["device"] = found.st_rdev
        if times and kind != stat.S_IFDIR:
            facts["mtime"] = found.st_mtime_ns
        facts["xattrs"] = {key: os.getxattr(path, key, follow_symlinks=False)
                           for key in sorted(os.listxattr(path, follow_symlinks=False))}
        if kind == stat.S_IFREG:
            groups.setdefault(found.st_ino, []).append(name)
        seen[name] = facts

    add(root, ".")
    for directory, directories, files in os.walk(root):
        directories.sort()
        for name in directories + files:
            path = os.path.join(directory, name)
            add(path, os.path.relpath(path, root))
    for names in groups.values():
        for name in names:
            seen[name]["links"] = sorted(names)
    return seen


def difference(one, two):
    """Returns the differences of two pictures, in words."""
    lines = []
    for name in sorted(set(one) | set(two)):
        if name not in one or name not in two:
            lines.append(f"{name}: only in {'the first' if name in one else 'the second'}")
        elif one[name] != two[name]:
            facts = [key for key in one[name] | two[name]
                     if one[name].get(key) != two[name].get(key)]
            lines += [f"{name}: {key}: {one[name].get(key)} and {two[name].get(key)}"
                      for key in facts]
    return lines
