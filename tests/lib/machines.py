"""Machines for tests of jobs by ssh: network namespaces, each with an address and an sshd of its own.

Keys, configuration and ports are the test's own; nothing in /etc/ssh or ~/.ssh is used or changed.
"""
import os
import subprocess
from pathlib import Path

from checks import wait_until
from fabric import Fabric

PORT = 2222


def call(*words, **options):
    """Runs a program that has to succeed."""
    return subprocess.run([str(word) for word in words], check=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


class Machines:
    """Network namespaces joined by a bridge in one of them, and their sshds."""

    def __init__(self, hosts, path=None):
        self.here = Path.cwd()
        self.hosts = hosts
        self.path = path
        self.running = []
        self.namespaces = [self.here / f"netns-{name}" for name in ("fabric", *hosts)]
        self.fabric = Fabric(lambda *words: self.inside(0, *words), "10.73.0")

    def start(self):
        """Makes them."""
        for path in self.namespaces:
            path.touch()
            call("unshare", f"--net={path}", "true")
        self.fabric.make()
        self.inside(0, "ip", "link", "set", "lo", "up")
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.here / "host-key")
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.here / "user-key")
        (self.here / "authorized").write_text((self.here / "user-key.pub").read_text())
        for number, _name in enumerate(self.hosts, 1):
            self.fabric.join(number, self.namespaces[number], lambda *words, number=number: self.inside(number, *words))
            self.start_sshd(number)
        self.write_client()

    def inside(self, number, *words):
        """Runs a program in a namespace."""
        return call("nsenter", f"--net={self.namespaces[number]}", *words)

    def start_sshd(self, number):
        """An sshd of its own."""
        config = self.here / f"sshd-{number}"
        config.write_text(f"""ListenAddress {self.fabric.address(number)}:{PORT}
HostKey {self.here}/host-key
AuthorizedKeysFile {self.here}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
{f'SetEnv PATH={self.path}' if self.path else ''}
""")
        Path("/run/sshd").mkdir(exist_ok=True)
        log = open(self.here / f"sshd-{number}.log", "w", encoding="utf-8")
        self.running.append(subprocess.Popen(
            ["nsenter", f"--net={self.namespaces[number]}", "/usr/sbin/sshd", "-D", "-e", "-f",
             config], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def write_client(self):
        """ssh's configuration: names, keys, and the way in."""
        keys = (self.here / "host-key.pub").read_text().split()[:2]
        (self.here / "known").write_text("".join(
            f"[{self.fabric.address(number)}]:{PORT} {' '.join(keys)}\n"
            for number in range(1, len(self.hosts) + 1)))
        text = ""
        for number, name in enumerate(self.hosts, 1):
            text += f"Host {name}\n  HostName {self.fabric.address(number)}\n"
        text += f"""Host *
  Port {PORT}
  User {os.environ.get('USER', 'root')}
  IdentityFile {self.here}/user-key
  IdentitiesOnly yes
  UserKnownHostsFile {self.here}/known
  GlobalKnownHostsFile /dev/null
"""
        (self.here / "client").write_text(text)

    def ssh(self):
        """The words that reach a host; ssh itself is run in the fabric's namespace."""
        return ["nsenter", f"--net={self.namespaces[0]}", "ssh", "-F", str(self.here / "client")]

    def answer(self, name):
        """Whether a host's sshd answers within a while."""
        return wait_until(lambda: subprocess.run(
            [*self.ssh(), "-n", name, "true"], capture_output=True, check=False).returncode == 0,
            10)

    def stop(self):
        """Removes them."""
        for child in self.running:
            child.terminate()
        for child in self.running:
            child.wait(10)
        for path in self.namespaces:
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)
