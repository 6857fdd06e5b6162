"""Network namespaces for nodes, each with a link to a bridge, to be taken down and up. Needs root."""
import subprocess

from fabric import Fabric


def ip(*arguments, check=True):
    """Runs ip(8)."""
    subprocess.run(["ip", *arguments], check=check, capture_output=not check)


class Network:
    """`nodes` namespaces behind a bridge; leaving the `with` block removes all of it."""

    def __init__(self, nodes, name="tsl", subnet="10.213.77"):
        self.nodes, self.name = nodes, name
        self.fabric = Fabric(lambda *words: subprocess.run(words, check=True), subnet, f"{name}-")
        self.meta = self.fabric.address(254)

    def address(self, number):
        """Returns a node's address."""
        return self.fabric.address(number)

    def namespace(self, number):
        """Returns the name of a node's namespace."""
        return f"{self.name}-node{number}"

    def configure(self, number):
        """Returns lines of a node's configuration."""
        return [f'network_namespace = "/run/netns/{self.namespace(number)}"',
                f'listen = "{self.address(number)}:0"']

    def __enter__(self):
        try:
            self.fabric.make()
            for number in range(1, self.nodes + 1):
                space = self.namespace(number)
                ip("netns", "add", space)
                self.fabric.join(number, space, lambda *words, space=space: ip("netns", "exec", space, *words))
        except BaseException:
            self.__exit__()
            raise
        return self

    def set_link(self, number, state):
        """Takes a node's link "up" or "down"."""
        ip("link", "set", self.fabric.port(number), state)

    def __exit__(self, *_):
        for number in range(1, self.nodes + 1):
            ip("netns", "del", self.namespace(number), check=False)
            ip("link", "del", self.fabric.port(number), check=False)
        ip("link", "del", self.fabric.bridge, check=False)
