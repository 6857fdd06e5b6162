"""The kernel's data on processes."""
from pathlib import Path


def thread_stats(process):
    """Returns `/proc/PID/task/*/stat` of a process's threads, without those that end meanwhile."""
    stats = []
    for task in Path("/proc", str(process), "task").iterdir():
        try:
            stats.append((task / "stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return stats


def living():
    """Returns {process: words of its command line} of the processes that have not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found[int(entry.name)] = words
    return found
