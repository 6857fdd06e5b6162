"""The commands of docs/containers.md, run as they are printed.

`python3 recipes.py ROOT KIND...` runs the blocks of these kinds in the working directory, as its caller, with
a pool that it makes before and takes down afterwards. It makes an image in the directory ROOT.
"""
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import podman

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/containers.md"
PROGRAM = os.environ.get("TSUMUGI", "tsumugi")
# The control groups of this kind of machine are of both versions, which crun refuses; and the limits of a
# container must not exceed those of its caller.
CONTAINERS_CONF = """[containers]
netns = "none"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
# What a block leaves in the pool: name and text.
LEFT = {"podman": ("podman", "warp\n"), "docker": ("docker", "weft\n"),
        "charliecloud": ("charliecloud", "thread\n"), "apptainer": ("apptainer", "shuttle\n")}


def blocks(kind):
    """Returns the page's blocks of a kind, as one script."""
    found = re.findall(rf"^```sh {kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert found, f"{PAGE.name} has no block {kind}"
    return "".join(found)


def shell(text, **variables):
    """Runs lines of shell, and returns what they print."""
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], env={**os.environ, **variables},
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{text}ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def make_image(at):
    """Creates a root directory with a few programs, ours among them, and their libraries."""
    podman.make_root(at)
    shutil.copy(PROGRAM, at / "bin/tsumugi")
    for library in re.findall(r"/[^ ]+", podman.run("ldd", PROGRAM, check=False).stdout):
        target = at / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    for name in ("mnt", "data", "run", "root", "home", "usr/bin", "var/tmp"):
        (at / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (at / "etc" / name).touch()


def prepare_podman(base, root):
    """Creates a store of its own with the image. Returns the image's name."""
    (base / "containers.conf").write_text(CONTAINERS_CONF)
    os.environ["CONTAINERS_CONF"] = str(base / "containers.conf")
    union = base / "tsumugi-union"
    if not union.exists():
        union.symlink_to(PROGRAM)
    store = podman.Podman(base, union)
    with subprocess.Popen(["tar", "-C", root, "--owner=0", "--group=0", "-c", "."], stdout=subprocess.PIPE) as tar:
        store("import", "-", "localhost/loom", stdin=tar.stdout)
    return store, "localhost/loom"


def put_program(base):
    """Makes `tsumugi` a command."""
    (base / "bin").mkdir(exist_ok=True)
    if not (base / "bin/tsumugi").exists():
        (base / "bin/tsumugi").symlink_to(PROGRAM)
    os.environ["PATH"] = f"{base}/bin:{os.environ['PATH']}"
    # Charliecloud asks for it, and not every shell of a machine has it.
    os.environ.setdefault("USER", pwd.getpwuid(os.geteuid()).pw_name)


class Pool:
    """The pool that the page begins with."""

    def __enter__(self):
        self.mount = shell(blocks("pool") + 'echo "mount is $MOUNT"\n').split("mount is ")[1].strip()
        return self

    def __exit__(self, *_):
        subprocess.run([PROGRAM, "down", "--job", "weave"], stdout=subprocess.DEVNULL, check=True)

    def follow(self, kind, image):
        """Runs the blocks of a kind; returns what they print."""
        said = shell(blocks(kind), MOUNT=self.mount, IMAGE=str(image))
        if kind in LEFT:
            name, text = LEFT[kind]
            found = Path(self.mount, name).read_text(encoding="utf-8")
            assert found == text, f"{kind} left {found!r}"
        print(f"ok      {kind}", flush=True)
        return said


def main():
    """Makes the image, and runs blocks with Podman's store in the working directory."""
    root, kinds = Path(sys.argv[1]), sys.argv[2:]
    base = Path.cwd()
    make_image(root)
    put_program(base)
    # The pool first: Podman without root keeps the mounts that it saw at its start.
    with Pool() as pool:
        store, image = prepare_podman(base, root)
        try:
            for kind in kinds:
                said = pool.follow(kind, root if kind == "charliecloud" else image)
                assert kind != "node" or "loom\n" in said, said
        finally:
            store.clean_up()


if __name__ == "__main__":
    main()
