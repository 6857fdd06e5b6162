"""What the tests of Slurm share: waiting for a job, looking for what is left, and doing all of it in rounds."""
import os
import time

import checks
import slurm_cluster as slurm
from checks import check, finish, need, wait_until

STAY = 'echo "begun $TSUMUGI_MOUNT"; sleep 600'


def began(cluster, job):
    """Waits until a job's script runs."""
    is_there = wait_until(lambda: "begun" in cluster.output(job), 40)
    return check(f"job {job} begins", is_there, f"{cluster.show(job)}\n{cluster.log('node1')}")


def is_gone(cluster, what):
    """Nothing is left of any job."""
    start = time.monotonic()
    is_idle = cluster.all_idle()
    left = cluster.gone()
    return check(f"{what}: nothing is left ({time.monotonic() - start:.1f} s)", not left and is_idle, left)


def run(configuration, parts, slow=(), needs=(), **options):
    """Starts Slurm, and runs the parts of a test as often as ROUNDS says; the slow ones only if that is more than once.
    PARTS may name those that are wanted."""
    rounds = int(os.environ.get("ROUNDS", "1"))
    names = os.environ.get("PARTS", "").split()
    chosen = [part for part in (*parts, *slow) if part.__name__ in names] or [*parts, *(slow if rounds > 1 else ())]
    need("slurm", "fuse", "root", "netns", "ip", "sshd", *needs)
    slurm.enter()
    cluster = slurm.Cluster(2, configuration, **options)
    try:
        if check("Slurm starts", cluster.start()):
            for number in range(rounds):
                once(cluster, chosen, number)
    finally:
        cluster.stop()
    finish()


def once(cluster, parts, number):
    """One round. After a failure the next part would wait for nodes in vain."""
    start = time.monotonic()
    for part in parts:
        began_at = time.monotonic()
        try:
            part(cluster)
        except (RuntimeError, OSError) as error:
            check(part.__name__, False, error)
        print(f"        {part.__name__}: {time.monotonic() - began_at:.1f} s", flush=True)
        if checks.failures:
            print("\n".join(cluster.log(name) for name in ("ctl", *cluster.nodes)))
            finish()
    print(f"round {number + 1}: {time.monotonic() - start:.1f} s", flush=True)
