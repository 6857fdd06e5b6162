"""The job of the demo, run by each of its ranks: in a container, or on the local disk to compare.

usage: job.py RANK RANKS INPUT OUTPUT

Reads input files and writes, for each input of its own, one output file (digest and compressed
content), and, together with the other ranks, one shared file of records of 47 008 bytes, where
rank k modulo RANKS writes record k. 47 008 is not a multiple of any block size: it is the record size of
the MPI-IO study with which the project compares itself.
"""
import os
import sys
import zlib
from hashlib import sha256

RECORD_BYTES = 47008
RECORDS_MAX = 2000


def inputs(top):
    """Returns all regular files below `top`, relative, in the same order everywhere."""
    found = []
    for directory, _names, files in os.walk(top):
        for name in files:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and not os.path.islink(path):
                found.append(os.path.relpath(path, top))
    return sorted(found, key=os.fsencode)


def write_output(source, target):
    """Writes one output file of one input."""
    with open(source, "rb") as file:
        content = file.read()
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(sha256(content).hexdigest().encode() + b"\n")
        file.write(zlib.compress(content, 1))


def record(number, source):
    """Returns record `number`: its number, then as much of a file as fits, again and again."""
    with open(source, "rb") as file:
        content = file.read(RECORD_BYTES) or b"empty"
    head = b"record %10d " % number
    times = (RECORD_BYTES - len(head)) // len(content) + 1
    return (head + content * times)[:RECORD_BYTES]


def main():
    """Runs one rank."""
    rank, ranks, top, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    names = inputs(top)
    if not names:
        sys.exit(f"no files in {top}")
    for name in names[rank::ranks]:
        write_output(os.path.join(top, name), os.path.join(output, "files", name + ".out"))
    records = min(RECORDS_MAX, 4 * len(names))
    shared = os.open(os.path.join(output, "shared"), os.O_WRONLY | os.O_CREAT, 0o644)
    for number in range(rank, records, ranks):
        data = record(number, os.path.join(top, names[number % len(names)]))
        if os.pwrite(shared, data, number * RECORD_BYTES) != len(data):
            sys.exit(f"record {number} was written in part")
    os.fsync(shared)
    os.close(shared)
    print(f"rank {rank} of {ranks}: {len(names[rank::ranks])} files, "
          f"{len(range(rank, records, ranks))} records")


if __name__ == "__main__":
    main()
