"""Containers for the job: an image made of this machine's own Python, and a runtime for it.

Charliecloud, Podman, Apptainer or Docker, the first that can run the image; plain namespaces (unshare
and chroot) only if none can, and then with a message. CONTAINER=NAME asks for one of them.
"""
import functools
import itertools
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from .processes import Failed, finish, run, start

SKIPPED = {"test", "tests", "site-packages", "dist-packages", "ensurepip", "idlelib", "tkinter",
           "lib2to3", "turtledemo", "pydoc_data", "__pycache__"}


def make_image(image):
    """Makes the image: the interpreter, its library, and the shared libraries they need."""
    for name in ("bin", "dev", "proc", "sys", "etc", "tmp", "root", "var/tmp", "usr/bin",
                 "data"):
        (image / name).mkdir(parents=True, exist_ok=True)
    user = f"user:x:{os.geteuid()}:{os.getegid()}::/tmp:/bin/sh\n"
    for name, text in (("passwd", user), ("group", f"user:x:{os.getegid()}:\n"),
                       ("hosts", ""), ("resolv.conf", "")):
        (image / "etc" / name).write_text(text)
    interpreter = Path(sys.executable).resolve()
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    shutil.copytree(library, image / library.relative_to("/"), symlinks=False,
                    ignore=lambda _path, names: [name for name in names if name in SKIPPED
                                                 or name.endswith(".a")],
                    ignore_dangling_symlinks=True, dirs_exist_ok=True)
    programs = [interpreter]
    programs += [path for path in (library / "lib-dynload").glob("*.so")
                 if path.name.split(".")[0] in ("zlib", "_hashlib", "_sha2", "_sha256", "math")]
    for library_path in {found for program in programs for found in shared_libraries(program)}:
        copy_into(image, library_path)
    copy_into(image, interpreter)
    shutil.copy(Path(__file__).with_name("job.py"), image / "job.py")
    return str(interpreter)


def copy_into(image, path):
    """Copies a file to the same place in the image."""
    target = image / Path(path).relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def shared_libraries(program):
    """Returns the shared libraries and the loader of a program, as the loader itself lists them."""
    listed = subprocess.run(["ldd", str(program)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True, check=False).stdout
    return [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]


# Numbers of containers, and the commands that remove them.
_numbers = itertools.count(1)
_undo = []


class Runtime:
    """A program that runs containers."""

    def __init__(self, name, words):
        self.name = name
        self.words = words

    def start(self, image, data, arguments, **options):
        """Starts the program in a container that sees `data` at /data."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8",
                       "USER": os.environ.get("USER", "user"), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["PATH"] += ":" + os.environ["PATH"]
        # Variables for the daemon and the paths of its files; the container does not see them.
        if self.name.startswith(("Docker", "Podman")):
            environment.update((key, value) for key, value in os.environ.items()
                               if key == "HOME" or key.startswith(("DOCKER_", "XDG_", "DBUS_")))
        return start([*self.words(str(image), str(data)), *arguments], env=environment, **options)


def _charliecloud(image, data):
    return ["ch-run", "-b", f"{data}:/data", image, "--"]


def _name(program):
    """Returns a new name for a container, which is always removed at the end."""
    name = f"tsumugi-demo-{os.getpid()}-{next(_numbers)}"
    _undo.append([program, "rm", "--force", name])
    return f"--name={name}"


def _podman(image, data, runtime=None):
    return ["podman", *([f"--runtime={runtime}"] if runtime else []), "run", "--rm",
            _name("podman"), "--network=none", *_limits(), "-v", f"{data}:/data", "--rootfs", image]


def _docker(image, data):
    return ["docker", "run", "--rm", _name("docker"), "--network=none", *_limits(),
            f"--user={os.geteuid()}:{os.getegid()}", "-v", f"{data}:/data", _docker_image(image)]


@functools.lru_cache
def _docker_image(image):
    """Returns the image for Docker's daemon; it is removed at the end."""
    name = f"tsumugi-demo-{os.getpid()}"
    _undo.append(["docker", "rmi", "--force", name])
    run(["sh", "-c", 'tar -C "$1" -c . | docker import - "$2"', "sh", image, name])
    return name


def remove_all():
    """Removes the remaining files of containers; the runtimes remove most of them."""
    for words in reversed(_undo):
        try:
            subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            print(f"demo: {' '.join(words)}: not done in time", file=sys.stderr)
    _undo.clear()


def _limits():
    # Their default limits are higher than those of many machines, where not even root may raise them.
    return [f"--ulimit={name}={most}:{most}" for name, most in (
        ("nofile", _limit(resource.RLIMIT_NOFILE)), ("nproc", _limit(resource.RLIMIT_NPROC)))]


def _limit(resource_number):
    """Returns a limit that is enough for the job and that can be set."""
    hard = resource.getrlimit(resource_number)[1]
    return 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)


def _podman_runc(image, data):
    # Older versions of crun refuse control groups of both kinds at once.
    return _podman(image, data, shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin"))


def _apptainer(image, data):
    # Root's containers would ask for all capabilities, which root does not have on every machine; and an
    # empty home would hide an interpreter in the user's home.
    return ["apptainer", "exec", "--containall", "--no-home", "--no-privs", "-B", f"{data}:/data",
            image]


def _namespaces(image, data):
    script = ('mount --rbind "$2" "$1/data" && mount -t proc proc "$1/proc" && shift_image=$1 && '
              'shift 2 && exec chroot "$shift_image" "$@"')
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *users, "--mount", "--pid", "--fork", "--kill-child",
            "sh", "-c", script, "sh", image, data]


KINDS = (("Charliecloud", "ch-run", _charliecloud), ("Podman", "podman", _podman),
         ("Podman with runc", "podman", _podman_runc), ("Apptainer", "apptainer", _apptainer),
         ("Docker", "docker", _docker), ("plain namespaces", "unshare", _namespaces))


def choose(image, interpreter, scratch, wanted=""):
    """Returns the first runtime with a name that begins as requested, that runs Python in the image and sees
    bound directories."""
    (scratch / "probe").mkdir()
    (scratch / "probe/file").write_text("seen")
    complaints = []
    for name, program, words in KINDS:
        if not name.lower().startswith(wanted.lower()):
            continue
        if not shutil.which(program):
            complaints.append(f"{name}: not installed")
            continue
        runtime = Runtime(name, words)
        try:
            said = probe(runtime, image, interpreter, scratch / "probe")
        except Failed as error:
            complaints.append(f"{name}: {error}")
            continue
        if said == "seen":
            return runtime, complaints
        complaints.append(f"{name}: said {said!r}")
    known = ", ".join(name for name, _, _ in KINDS)
    raise Failed("no container can be run here: "
                 + ("; ".join(complaints) or f"CONTAINER={wanted} is none of {known}"))


def probe(runtime, image, interpreter, data):
    """Runs a line of Python in a container."""
    line = "import zlib, hashlib; print(open('/data/file').read(), end='')"
    child = runtime.start(image, data, [interpreter, "-I", "-c", line],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return finish(child, runtime.name, 60).decode()
