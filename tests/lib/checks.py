"""What tests print and how they end: results one by one, what is missing on the machine, and waiting."""
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

failures = 0


def check(what, is_held, detail=""):
    """Prints one result, as tests/kernel does."""
    global failures
    print(f"{'ok     ' if is_held else 'FAILED '} {what}", flush=True)
    if not is_held:
        failures += 1
        if detail:
            print("        | " + str(detail).strip().replace("\n", "\n        | "), flush=True)
    return is_held


def finish():
    """The exit status."""
    sys.exit(1 if failures else 0)


def need(*names):
    """Ends the test as tests/required has it, if something is missing."""
    status = subprocess.run([ROOT / "tools/require", *names], check=False).returncode
    if status:
        sys.exit(status)


def wait_until(is_true, seconds):
    """Waits until something is true; says whether it became so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_true():
            return True
        time.sleep(0.05)
    return is_true()
