"""The input of the demo: a copy of a tree that may change meanwhile, and its manifest.

The demo stages a tree in, runs a job on it twice and compares. Other programs may write to that tree at the
same time: a package that is installed while the demo runs changes /usr/share/doc. So the demo takes
a copy first, works on the copy alone, and keeps the digest of each file that it copied.
"""
import hashlib
import os
import stat
from typing import NamedTuple

BLOCK_BYTES = 4096
CHUNK_BYTES = 1 << 20


class TooLarge(Exception):
    """The tree has more bytes than the demo takes."""


class Manifest(NamedTuple):
    """The content of the copy."""

    #: SHA-256, in hexadecimal, of each regular file, by its path relative to the top.
    digests: dict
    #: Bytes of all files, each rounded up to blocks.
    used_bytes: int
    #: Paths that vanished or could not be read while the copy was made.
    left_out: list


def freeze(source, target, bytes_max):
    """Copies directories, regular files and symbolic links of `source` to the new directory `target`.

    Returns the manifest. A file that vanishes meanwhile or cannot be read is left out; special files are
    not copied. Raises TooLarge when the files have more than `bytes_max` bytes.
    """
    digests, left_out, used = {}, [], 0
    os.mkdir(target)
    for directory, names, files in os.walk(source, onerror=lambda error: left_out.append(error.filename)):
        inside = os.path.relpath(directory, source)
        for name in sorted(names + files):
            path, relative = os.path.join(directory, name), os.path.normpath(os.path.join(inside, name))
            try:
                digest, size = copy_one(path, os.path.join(target, relative), bytes_max - used)
            except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError):
                left_out.append(path)
                continue
            if digest is not None:
                digests[relative] = digest
                used += -(-size // BLOCK_BYTES) * BLOCK_BYTES
    return Manifest(digests, used, left_out)


def copy_one(path, target, bytes_max):
    """Copies one entry; returns the digest and size of a regular file, else (None, 0)."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(path), target)
    elif stat.S_ISDIR(mode):
        os.mkdir(target)
    elif stat.S_ISREG(mode):
        with open(path, "rb") as file:
            return copy_content(file, target, bytes_max)
    return None, 0


def copy_content(file, target, bytes_max):
    """Copies an open file to `target`; returns the digest and the number of bytes copied."""
    digest, size = hashlib.sha256(), 0
    with open(target, "xb") as copy:
        while chunk := file.read(CHUNK_BYTES):
            size += len(chunk)
            if size > bytes_max:
                raise TooLarge
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest(), size


def wrong_outputs(digests, top):
    """Returns the inputs with a missing output below `top`, or with an output that begins with another digest.

    An output of the job begins with the digest of its input, on a line of its own.
    """
    wrong = []
    for relative, digest in sorted(digests.items()):
        try:
            with open(os.path.join(top, relative + ".out"), "rb") as file:
                found = file.readline().strip().decode(errors="replace")
        except OSError:
            found = None
        if found != digest:
            wrong.append(relative)
    return wrong
