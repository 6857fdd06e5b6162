"""Mount namespaces that tests make for themselves."""
import os
import subprocess
import sys
from pathlib import Path


def enter(variable, *more):
    """Starts the program again in a mount namespace of its own, unless the environment has this variable."""
    if variable not in os.environ:
        os.environ[variable] = "1"
        os.execvp("unshare", ["unshare", "--mount", *more, "--propagation", "private", sys.executable,
                              str(Path(sys.argv[0]).resolve()), *sys.argv[1:]])
    leave_fuse()


def leave_fuse():
    """Removes the copies of mounts that other tests have at this moment: these would keep them alive, and their
    servers."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, (kind, *_source) = line.split()[4], line.partition(" - ")[2].split()
        if kind.startswith("fuse"):
            at = place.encode().decode("unicode_escape").encode("latin-1")
            subprocess.run(["umount", "-l", at], check=False, stderr=subprocess.DEVNULL)
