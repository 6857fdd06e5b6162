"""The output of the demo."""


def say(text):
    """Prints a line at once."""
    print(text, flush=True)


def size(count):
    """Returns bytes in a form for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def copied(summary):
    """Returns a summary of `tsumugi cp`."""
    return (f"{summary['files']} files, {size(summary['bytes'])} in {summary['seconds']:.2f} s, "
            f"{size(summary['bytes_per_second'])}/s, {summary['verified']} verified")


class Checks:
    """Checks, and their results."""

    def __init__(self):
        self.results = []

    def hold(self, what, is_held):
        """Records and prints a check."""
        self.results.append(bool(is_held))
        say(f"{'ok    ' if is_held else 'BROKEN'}  {what}")

    def all_held(self):
        """Returns whether there were checks, and all held."""
        return bool(self.results) and all(self.results)


def show_counts(status, clients):
    """Prints local and remote bytes, by targets and by clients."""
    say("\nbytes by the targets' own counts")
    say(f"  {'device of':10} {'read local':>12} {'read remote':>12} {'written local':>14} "
        f"{'written remote':>14} {'commands':>9}")
    for device in status["devices"]:
        say(f"  {device['node']:10} {size(device['read_local_bytes']):>12} "
            f"{size(device['read_remote_bytes']):>12} {size(device['written_local_bytes']):>14} "
            f"{size(device['written_remote_bytes']):>14} {device['commands']:>9}")
    say("bytes by the clients' counts")
    say(f"  {'mount of':10} {'read local':>12} {'read remote':>12} {'written local':>14} "
        f"{'written remote':>14} {'meta calls':>10}")
    for node, counts in sorted(clients.items()):
        def total(what, is_local, devices=counts["devices"]):
            return size(sum(d[what] for d in devices if d["is_local"] == is_local))
        say(f"  {node:10} {total('read_bytes', True):>12} {total('read_bytes', False):>12} "
            f"{total('written_bytes', True):>14} {total('written_bytes', False):>14} "
            f"{counts['meta_calls']:>10}")


def show_table(title, rows):
    """Prints local against remote: rows of (name, local, remote), each (bytes/s, operations/s, µs)."""
    say(f"\n{title}")
    say(f"  {'':28} {'local':>11} {'remote':>11} {'change':>7}   {'local':>8} {'remote':>8}")
    for name, near, far in rows:
        change = (far[0] / near[0] - 1) * 100 if near[0] else 0
        say(f"  {name:28} {size(near[0]) + '/s':>11} {size(far[0]) + '/s':>11} {change:>+6.0f}%   "
            f"{near[2]:>5.0f} us {far[2]:>5.0f} us")
