"""An ordinary user with subordinate ids, for tests of the whole system.

The user exists in a mount namespace of the test only, which has its own /etc/passwd, /etc/subuid and
so on, and a /dev/fuse that all users may open: nothing is left on the machine. The user's files are
bound below /mnt, because the test's own directory is closed to others.
"""
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from unions import TSUMUGI, run

PROJECT = Path(__file__).resolve().parent.parent.parent
USER, UID = "tsumugi-test", 61_234
SUBORDINATE = f"{USER}:700000:65536\n"
PLACE = Path("/mnt")
HOME = PLACE / "home"
PROGRAM = PLACE / "tsumugi-union"
INSIDE = """set -eu
for name in passwd group subuid subgid; do mount --bind etc/$name /etc/$name; done
mknod fuse c 10 229 && chmod 0666 fuse && mount --bind fuse /dev/fuse
mount --bind . {place}
mount --bind "$TSUMUGI" {place}/tsumugi
mount --bind {project} {place}/project
cd {place}/home
exec setpriv --reuid {uid} --regid {uid} --clear-groups --inh-caps=-all \\
    env -i HOME={place}/home USER={user} XDG_RUNTIME_DIR={place}/runtime PATH="$PATH" \\
    TSUMUGI={place}/tsumugi "$@"
"""


def require(*names):
    """Ends the test unless the machine has what it needs."""
    needed = run(PROJECT / "tools/require", "root", "fuse", "uidmap", *names, check=False)
    if needed.returncode != 0:
        print(needed.stdout.strip())
        sys.exit(needed.returncode)
    try:
        pwd.getpwuid(UID)
        sys.exit(f"user {UID} exists")
    except KeyError:
        pass


def make_user(base):
    """Creates files of /etc with one more user, and other files to bind over."""
    etc = base / "etc"
    etc.mkdir()
    for name, line in (("passwd", f"{USER}:x:{UID}:{UID}::{HOME}:/bin/sh\n"),
                       ("group", f"{USER}:x:{UID}:\n"),
                       ("subuid", SUBORDINATE), ("subgid", SUBORDINATE)):
        before = Path("/etc", name)
        text = before.read_text() if before.exists() else ""
        (etc / name).write_text(text + line)
        (etc / name).chmod(0o644)
    for name in ("home", "runtime"):
        (base / name).mkdir(mode=0o700)
        os.chown(base / name, UID, UID)
    (base / "tsumugi").touch()
    (base / "tsumugi-union").symlink_to("tsumugi")
    (base / "project").mkdir()
    base.chmod(0o755)


def end_processes():
    """Ends the user's remaining processes, which keep its namespaces."""
    for process in Path("/proc").iterdir():
        try:
            status = (process / "status").read_text()
            if re.search(rf"^Uid:\t{UID}\t", status, re.MULTILINE):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            pass


def run_as_user(base, *command):
    """Runs a command as the user in its home, and returns its exit status. `base` is an empty
    directory of the test's."""
    make_user(base)
    script = INSIDE.format(place=PLACE, uid=UID, user=USER, project=PROJECT)
    unshared = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    try:
        return subprocess.run([*unshared, *(str(word) for word in command)], cwd=base,
                              env={**os.environ, "TSUMUGI": TSUMUGI}, check=False).returncode
    finally:
        end_processes()
        # Some of it belongs to the user's subordinate ids.
        shutil.rmtree(base / "home", ignore_errors=True)
