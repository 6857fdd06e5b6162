"""A Docker daemon of the test's own: with its own data, socket and mount namespace."""
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import podman
from unions import TSUMUGI

START_SECONDS = 60


class Docker:
    """A daemon with everything in one directory; its socket is in another, because its path must be short."""

    def __init__(self, base, short, driver="fuse-overlayfs"):
        """The driver fuse-overlayfs starts the first program of that name: ours."""
        self.base, self.socket = base, short / "docker.sock"
        self.group = f"tsumugi-test-{os.getpid()}"
        (base / "daemon.json").write_text("{}")
        (base / "bin").mkdir()
        (base / "bin/fuse-overlayfs").symlink_to(TSUMUGI)
        self.environment = {**os.environ, "PATH": f"{base}/bin:{os.environ['PATH']}",
                            "DOCKER_HOST": f"unix://{self.socket}", "DOCKER_BUILDKIT": "0",
                            "DOCKER_CONFIG": str(base / "config"),
                            "XDG_RUNTIME_DIR": str(short)}
        with open(base / "log", "w") as log:
            self.daemon = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "dockerd", "--data-root",
                 base / "data", "--exec-root", short / "exec", "-H", f"unix://{self.socket}", "-p",
                 short / "pid", "--storage-driver", driver, "--cgroup-parent",
                 f"/{self.group}", "--bridge", "none", "--iptables=false", "--ip-forward=false",
                 "--ip-masq=false", "--config-file", base / "daemon.json"],
                stdout=log, stderr=log, env=self.environment)
        deadline = time.monotonic() + START_SECONDS
        while self("info", check=False).returncode != 0:
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                self.daemon.kill()
                sys.exit("dockerd does not start:\n" + (base / "log").read_text()[-3000:])
            time.sleep(0.1)
        self.start = ["docker", "run", "--network", "none", "--ulimit", "nofile=1024:1024"]

    def __call__(self, *arguments, **more):
        return podman.run("docker", *arguments, env=self.environment, **more)

    def run(self, *arguments, **more):
        """Runs `docker run`."""
        return podman.run(*self.start, *arguments, env=self.environment, **more)

    def import_base(self, root=None):
        """Imports the base image from a root directory, by default one of a few programs."""
        if root is None:
            root = self.base / "root"
            podman.make_root(root)
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
            self("import", "-", "base", stdin=tar.stdout)

    def end(self):
        """Removes the containers and ends the daemon."""
        names = self("ps", "-aq", check=False).stdout.split()
        if names:
            self("rm", "-f", *names, check=False)
        self.daemon.send_signal(signal.SIGTERM)
        try:
            self.daemon.wait(60)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
        for at in Path("/sys/fs/cgroup").glob(f"*/{self.group}"):
            with contextlib.suppress(OSError):
                at.rmdir()
