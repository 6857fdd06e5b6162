"""Podman with unions of ours as its mount_program: what a user does with an image and containers.

The image is made of this machine's own files; nothing is pulled. `python3 podman.py PROGRAM PARALLEL`
runs everything in the working directory, as its caller.
"""
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ["sh", "ls", "cat", "mkdir", "rm", "mv", "cp", "chmod", "stat", "sleep", "tar", "chown", "wc"]
# Five steps: an installation from local files, changes of all modes, a renamed directory of a lower layer, removed
# files, written files.
STEPS = """FROM localhost/base
COPY package.tar /package.tar
RUN tar -x -f /package.tar -C / && mkdir /directory && cp /etc/data /directory/one
RUN chmod -R 0750 /directory /etc /opt && chown -R 7:8 /opt/package
RUN mv /directory /moved && mv /opt/package /opt/renamed
RUN rm /etc/data /package.tar && rm -r /opt/renamed/docs
RUN echo five > /moved/five && echo more >> /opt/renamed/read.me
"""


def run(*command, check=True, **more):
    """Runs a command and returns it with its output."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False, **more)
    if check and done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr}{done.stdout}")
    return done


def make_root(at):
    """Creates a root directory with a few programs and their libraries."""
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "opt"):
        (at / name).mkdir(parents=True)
    for name in PROGRAMS:
        program = shutil.which(name)
        shutil.copy(program, at / "bin")
        for library in re.findall(r"/[^ ]+", run("ldd", program, check=False).stdout):
            target = at / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    (at / "etc/data").write_text("data\n")


def make_package(at):
    """Creates the files that the build installs."""
    (at / "opt/package/docs").mkdir(parents=True)
    for index in range(200):
        (at / f"opt/package/{index}").write_text(f"{index}\n" * 100)
    (at / "opt/package/docs/page").write_text("page\n")
    (at / "opt/package/read.me").write_text("read\n")
    run("tar", "-C", at, "-cf", at.parent / "package.tar", "opt")


class Podman:
    """Podman with a store of its own in a directory."""

    def __init__(self, base, program, *more):
        """`more` are further lines of the store's configuration."""
        self.base = base
        (base / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{base}/graph"\nrunroot = "{base}/run"\n'
            f'[storage.options.overlay]\nmount_program = "{program}"\n' + "\n".join(more))
        os.environ["CONTAINERS_STORAGE_CONF"] = str(base / "storage.conf")
        # The control groups of this kind of machine are of both versions, which crun refuses.
        self.command = ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
        # The limits of a container must not exceed those of its caller.
        self.start = [*self.command, "run", "--network", "none", "--ulimit", "nofile=1024:1024",
                      "--ulimit", "nproc=1024:1024"]

    def __call__(self, *arguments, **more):
        return run(*self.command, *arguments, **more)

    def run(self, *arguments, **more):
        """Runs `podman run`."""
        return run(*self.start, *arguments, **more)

    def import_base(self):
        """Imports the base image."""
        make_root(self.base / "root")
        with subprocess.Popen(["tar", "-C", self.base / "root", "-c", "."],
                              stdout=subprocess.PIPE) as tar:
            self("import", "-", "localhost/base", stdin=tar.stdout)

    def build(self):
        """Builds the image of five steps."""
        make_package(self.base / "package")
        (self.base / "Containerfile").write_text(STEPS)
        self("build", "--isolation", "chroot", "-t", "localhost/built", "-f",
             self.base / "Containerfile", self.base)

    def clean_up(self):
        """Removes everything."""
        self("rm", "-af", "-t", "0", check=False)
        self("rmi", "-af", check=False)


def check_image(podman):
    """Checks that the built image has what the steps made."""
    seen = podman.run("--rm", "localhost/built", "sh", "-c",
                      "ls -A /moved; ls /etc/data /directory /opt/renamed/docs /package.tar;"
                      "stat -c %a:%u:%g /moved/one /opt/renamed/7; cat /opt/renamed/read.me",
                      check=False)
    assert seen.stdout.split() == ["five", "one", "750:0:0", "750:7:8", "read", "more"], seen


def check_container(podman):
    """Changes, examines, compares, commits and stops a container."""
    podman.run("--name", "first", "localhost/built", "sh", "-c",
               "echo x > /moved/x; rm /moved/five; echo more >> /moved/one")
    changed = set(podman("diff", "first").stdout.splitlines())
    assert changed >= {"A /moved/x", "D /moved/five", "C /moved/one"}, changed
    podman("commit", "-q", "first", "localhost/second")
    seen = podman.run("--rm", "localhost/second", "sh", "-c", "ls /moved; cat /moved/one")
    assert seen.stdout.split() == ["one", "x", "data", "more"], seen
    podman.run("-d", "--name", "long", "localhost/second", "sh", "-c",
               "echo started > /moved/state; sleep 600")
    mounts = podman("exec", "long", "cat", "/proc/self/mounts").stdout.splitlines()
    assert [line.split()[2] for line in mounts if line.split()[1] == "/"] == ["fuse.tsumugi-union"]
    seen = podman("exec", "long", "sh", "-c", "cat /moved/state; echo exec > /moved/exec; ls /moved")
    assert seen.stdout.split() == ["started", "exec", "one", "state", "x"], seen
    podman("stop", "-t", "0", "long")
    podman("start", "long")
    seen = podman("exec", "long", "cat", "/moved/exec")
    assert seen.stdout.strip() == "exec", seen
    podman("stop", "-t", "0", "long")


def run_many(podman, count):
    """Starts containers at the same time, which all change the same file of their image."""
    several = [subprocess.Popen([*podman.start, "--rm", "localhost/built", "sh", "-c",
                                 f"echo {index} > /moved/one; chmod -R 0700 /opt/renamed;"
                                 "cat /moved/one"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for index in range(count)]
    said = [process.communicate() for process in several]
    wrong = [(index, words) for index, words in enumerate(said) if words[0] != f"{index}\n"]
    assert not wrong, wrong[:5]
    left = podman("ps", "-aq").stdout.split()
    assert len(left) == 2, left


def unions_left(podman):
    """Unions that are still mounted, where Podman mounts them: in a namespace of its own, unless it
    is root's."""
    look = ["cat", "/proc/self/mounts"]
    mounts = run(*look) if os.geteuid() == 0 else podman("unshare", *look)
    return [line for line in mounts.stdout.splitlines()
            if f"{podman.base}/graph" in line and "tsumugi" in line]


def check_all(base, program, count):
    """Checks everything, one after the other."""
    podman = Podman(base, program)
    try:
        for name, step in (("import", podman.import_base), ("build", podman.build),
                           ("image", lambda: check_image(podman)),
                           ("container", lambda: check_container(podman)),
                           (f"{count} at a time", lambda: run_many(podman, count))):
            start = time.monotonic()
            step()
            print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    finally:
        podman.clean_up()
    assert not unions_left(podman), unions_left(podman)


def check_force_mask(base, program):
    """With `force_mask` files on disk are open to all, and containers see owners and modes of an
    attribute (`xattr_permissions=2`)."""
    podman = Podman(base, program, 'force_mask = "shared"')
    try:
        podman.import_base()
        podman.run("--name", "masked", "localhost/base", "sh", "-c",
                   "chmod 0600 /etc/data; chown 7:8 /etc/data; mkdir -m 0700 /opt/private")
        upper = Path(podman("inspect", "-f", "{{.GraphDriver.Data.UpperDir}}", "masked").stdout.strip())
        found = [(os.getxattr(upper / name, "user.containers.override_stat"),
                  os.stat(upper / name).st_mode & 0o755) for name in ("etc/data", "opt/private")]
        assert found == [(b"7:8:600", 0o755), (b"0:0:700", 0o755)], found
        podman("commit", "-q", "masked", "localhost/masked")
        seen = podman.run("--rm", "localhost/masked", "stat", "-c", "%a:%u:%g", "/etc/data",
                          "/opt/private")
        assert seen.stdout.split() == ["600:7:8", "700:0:0"], seen
    finally:
        podman.clean_up()


if __name__ == "__main__":
    check_all(Path.cwd(), sys.argv[1], int(sys.argv[2]))
