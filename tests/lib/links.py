"""Network namespaces for nodes, each with a link to a bridge, to be taken down and up. Needs root."""
import subprocess


def ip(*arguments, check=True):
    """Runs ip(8)."""
    subprocess.run(["ip", *arguments], check=check, capture_output=not check)


class Network:
    """`nodes` namespaces behind a bridge; leaving the `with` block removes all of it."""

    def __init__(self, nodes, name="tsl", subnet="10.213.77"):
        self.nodes, self.name, self.subnet = nodes, name, subnet
        self.meta = f"{subnet}.254"

    def address(self, number):
        """Returns a node's address."""
        return f"{self.subnet}.{number}"

    def namespace(self, number):
        """Returns the name of a node's namespace."""
        return f"{self.name}-node{number}"

    def configure(self, number):
        """Returns lines of a node's configuration."""
        return [f'network_namespace = "/run/netns/{self.namespace(number)}"',
                f'listen = "{self.address(number)}:0"']

    def __enter__(self):
        try:
            ip("link", "add", f"{self.name}-br", "type", "bridge")
            ip("addr", "add", f"{self.meta}/24", "dev", f"{self.name}-br")
            ip("link", "set", f"{self.name}-br", "up")
            for number in range(1, self.nodes + 1):
                outer, inner = f"{self.name}-o{number}", f"{self.name}-i{number}"
                space = self.namespace(number)
                ip("netns", "add", space)
                ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
                ip("link", "set", outer, "master", f"{self.name}-br", "up")
                ip("-n", space, "addr", "add", f"{self.address(number)}/24", "dev", inner)
                ip("-n", space, "link", "set", inner, "up")
                ip("-n", space, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def set_link(self, number, state):
        """Takes a node's link "up" or "down"."""
        ip("link", "set", f"{self.name}-o{number}", state)

    def __exit__(self, *_):
        for number in range(1, self.nodes + 1):
            ip("netns", "del", self.namespace(number), check=False)
            ip("link", "del", f"{self.name}-o{number}", check=False)
        ip("link", "del", f"{self.name}-br", check=False)
