"""Networks of test machines: a bridge in one network namespace, and a link from it to each machine's."""


class Fabric:
    """A bridge, with the addresses of a subnet of 255 behind it. `run` runs a program in the bridge's namespace.
    The names of its ends of links begin with `prefix`, so that several fabrics fit into one namespace."""

    def __init__(self, run, subnet, prefix=""):
        self.run, self.subnet, self.prefix = run, subnet, prefix
        self.bridge = f"{prefix}fabric"

    def address(self, number):
        """Returns the address of a machine; the bridge's is number 254."""
        return f"{self.subnet}.{number}"

    def port(self, number):
        """Returns the name of the bridge's end of a machine's link."""
        return f"{self.prefix}port{number}"

    def make(self):
        """Makes the bridge."""
        self.run("ip", "link", "add", self.bridge, "type", "bridge")
        self.run("ip", "address", "add", f"{self.address(254)}/24", "dev", self.bridge)
        self.run("ip", "link", "set", self.bridge, "up")

    def join(self, number, namespace, inside):
        """Joins the network namespace of a machine; `inside` runs a program there."""
        self.run("ip", "link", "add", self.port(number), "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self.run("ip", "link", "set", self.port(number), "master", self.bridge, "up")
        inside("ip", "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        inside("ip", "link", "set", "eth0", "up")
        inside("ip", "link", "set", "lo", "up")
