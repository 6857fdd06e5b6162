"""Three nodes on this machine: `tsumugi up`, `status`, `cp`, `down`."""
import json
import os
import time

from .processes import Failed, run

# Targets report to the metadata service every two seconds.
COUNTS_WITHIN_SECONDS = 15


class Cluster:
    """A job of `tsumugi up --local`."""

    def __init__(self, program, job, nodes, size_bytes, devices):
        self.program = program
        self.job = job
        self.nodes = []
        self.size_bytes = size_bytes
        self.count = nodes
        self.devices = devices
        self.is_up = False

    def up(self):
        """Brings it up. Returns the output of `up`."""
        self.is_up = True
        words = ["up", "--local", self.count, "--job", self.job, "--size", self.size_bytes,
                 "--device-dir", self.devices, "--json"]
        result = json.loads(run([self.program, *words]))
        self.nodes = self.status()["nodes"]
        return result

    def down(self):
        """Takes it down. Raises Failed if a process had to be killed or something is left."""
        if self.is_up:
            run([self.program, "down", "--job", self.job, "--deadline", "30s"], timeout=60)
            self.is_up = False

    def status(self):
        """Returns the state that `status --json` prints."""
        return json.loads(run([self.program, "status", "--job", self.job, "--json"], timeout=30))

    def copy(self, source, target):
        """Stages with checksums. Returns the summary."""
        words = [self.program, "cp", "-r", "--checksum", "--json", source, target]
        return json.loads(run(words))

    def mount(self, number):
        """Returns the mount point of node `number`, from 1."""
        return self.nodes[number - 1]["mount"]

    def client_counts(self):
        """Returns each mount's counters: {node: counts}."""
        return {node["name"]: json.loads(os.getxattr(node["mount"], "user.tsumugi.counts"))
                for node in self.nodes}

    def agreed_counts(self):
        """Returns (targets' devices, clients' counts, disagreements), once both agree or time is over."""
        deadline = time.monotonic() + COUNTS_WITHIN_SECONDS
        while True:
            clients = self.client_counts()
            status = self.status()
            wrong = disagreements(status["devices"], clients)
            if not wrong or time.monotonic() > deadline:
                return status, clients, wrong
            time.sleep(0.3)


def disagreements(devices, clients):
    """Returns where the targets' own counts differ from the sums of the clients', in words."""
    wrong = []
    if not devices:
        raise Failed("the metadata service knows no devices")
    for device in devices:
        sums = {"read_local_bytes": 0, "read_remote_bytes": 0,
                "written_local_bytes": 0, "written_remote_bytes": 0}
        for counts in clients.values():
            for seen in counts["devices"]:
                if seen["device"] == device["device"]:
                    place = "local" if seen["is_local"] else "remote"
                    sums[f"read_{place}_bytes"] += seen["read_bytes"]
                    sums[f"written_{place}_bytes"] += seen["written_bytes"]
        for name, value in sums.items():
            if device[name] != value:
                wrong.append(f"{device['node']} {name}: target {device[name]}, clients {value}")
    return wrong
