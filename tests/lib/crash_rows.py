"""One crash for each row of the table "What is durable before what" of docs/union-durability.md.

A row does something through a union, lets another file be synced (which flushes the journal of partial
copies and nothing else), and returns the possible states after a loss of power: a list of states, each with a
content for each path, or None for no such name. Files that were synced and not changed since must always
be there.
"""
import json
import mmap
import os
import time

from crash import rename_exchange, syncfs
from crash_case import CHUNK, FILES

KEEP = "chunk=4K,fill=keep,redirect_dir=on,batch_ms=10000"
ROWS = {}
WAIT_SECONDS = 120


def row(more=KEEP, only=None):
    """Registers a function as a row."""
    def add(act):
        ROWS[act.__name__] = (act, more, only)
        return act
    return add


@row()
def create(case):
    """a new partial file"""
    new = case.patch("a/f", sync=False)
    case.flush()
    return [{"a/f": FILES["a/f"]}, {"a/f": new}]


@row()
def data(case):
    """data of a partial file"""
    old = case.patch("a/f")
    new = case.patch("a/f", b"later", at=5 * CHUNK, sync=False)
    case.exact.pop("a/f")
    return [{"a/f": old}, {"a/f": new}]


@row()
def truncation(case):
    """the size of a partial file"""
    case.patch("a/f")
    cut = case.exact.pop("a/f")[:3000]
    case.do(lambda name: os.truncate(name, 3000), "a/f")
    case.sync_directory("a")
    return [{"a/f": cut}]


@row()
def times(case):
    """times of a partial file"""
    case.patch("a/f")
    case.do(lambda name: os.utime(name, (1000, 2000)), "a/f")
    case.sync_directory("a")
    case.stats = {"a/f": lambda found: found.st_mtime == 2000}
    return [{}]


@row()
def completion(case):
    """completing a file, for chmod"""
    case.patch("a/f")
    case.do(lambda name: os.chmod(name, 0o640), "a/f")
    case.flush()
    return [{}]


@row()
def xattr(case):
    """completing a file, for an extended attribute"""
    case.patch("a/f")
    case.do(lambda name: os.setxattr(name, "user.mark", b"1"), "a/f")
    case.flush()
    return [{}]


@row()
def unlink(case):
    """unlink of a partial file"""
    new = case.patch("a/f")
    case.exact.pop("a/f")
    case.do(os.unlink, "a/f")
    case.flush()
    return [{"a/f": new}, {"a/f": None}]


@row()
def unlink_open(case):
    """unlink of a partial file that stays open, and is written to"""
    old = case.patch("a/f")
    case.exact.pop("a/f")
    late = b"later than the unlink"

    def act(name, other):
        file = os.open(name, os.O_RDWR)
        os.unlink(name)
        os.pwrite(file, late, 0)
        os.fsync(file)
        flush = os.open(other, os.O_RDWR)
        os.pwrite(flush, b"x", 0)
        os.fsync(flush)

    case.do(act, "a/f", "z/o7")
    return [{"a/f": late + old[len(late):]}, {"a/f": None}]


@row()
def unlink_synced(case):
    """unlink of a partial file, and fsync of its directory"""
    case.patch("a/f")
    case.exact["a/f"] = None
    case.do(os.unlink, "a/f")
    case.sync_directory("a")
    case.flush()
    return [{}]


@row()
def whole_over_partial(case):
    """rename of a whole file over a partial one"""
    old, new = case.patch("a/f"), case.make("a/new")
    case.exact.pop("a/f")
    case.do(os.rename, "a/new", "a/f")
    case.flush()
    return [{"a/f": old, "a/new": new}, {"a/f": new, "a/new": None}]


@row()
def whole_over_partial_across(case):
    """the same, from another directory"""
    old, new = case.patch("a/f"), case.make("b/new")
    case.exact.pop("a/f")
    case.do(os.rename, "b/new", "a/f")
    case.flush()
    return [{"a/f": old, "b/new": new}, {"a/f": new, "b/new": None}]


@row()
def partial_over_partial(case):
    """rename of a partial file over another one"""
    one, other = case.patch("a/f"), case.patch("a/g", b"other")
    case.exact.clear()
    case.do(os.rename, "a/f", "a/g")
    case.flush()
    return [{"a/f": one, "a/g": other}, {"a/f": None, "a/g": one}]


@row()
def partial_over_whole(case):
    """rename of a partial file over a whole one"""
    one, other = case.patch("a/f"), case.make("b/new")
    case.exact.clear()
    case.do(os.rename, "a/f", "b/new")
    case.flush()
    return [{"a/f": one, "b/new": other}, {"a/f": None, "b/new": one}]


@row()
def rename(case):
    """rename of a partial file, in its directory"""
    new = case.patch("a/f")
    case.exact.clear()
    case.do(os.rename, "a/f", "a/h")
    case.flush()
    return [{"a/f": new, "a/h": None}, {"a/f": None, "a/h": new}]


@row()
def rename_across(case):
    """rename of a partial file to another directory, and fsync of that"""
    new = case.patch("a/f")
    case.exact.clear()
    case.do(os.rename, "a/f", "b/h")
    case.sync_directory("b")
    case.flush()
    return [{"a/f": None, "b/h": new}]


@row()
def exchange(case):
    """exchange of two partial files"""
    one, other = case.patch("a/f"), case.patch("b/f", b"other")
    case.exact.clear()
    case.do(rename_exchange, "a/f", "b/f")
    case.flush()
    return [{"a/f": one, "b/f": other}, {"a/f": other, "b/f": one}]


@row()
def exchange_whole(case):
    """exchange of a partial file with a whole one"""
    one, other = case.patch("a/f"), case.make("b/new")
    case.exact.clear()
    case.do(rename_exchange, "a/f", "b/new")
    case.flush()
    return [{"a/f": one, "b/new": other}, {"a/f": other, "b/new": one}]


@row()
def made_anew(case):
    """a partial file is removed, and one of its name made and synced"""
    case.patch("a/f")
    case.do(os.unlink, "a/f")
    case.exact["a/f"] = case.make("a/f")
    case.flush()
    return [{}]


@row()
def directory_removed(case):
    """a directory goes with the partial file that was in it"""
    new = case.patch("p/q/r/f")
    case.exact.clear()
    case.do(os.unlink, "p/q/r/f")
    case.do(os.rmdir, "p/q/r")
    case.flush()
    return [{"p/q/r/f": new}, {"p/q/r/f": None}]


@row()
def directory_made_anew(case):
    """the same, and a directory of that name is made"""
    case.patch("p/q/r/f")
    case.do(os.unlink, "p/q/r/f")
    case.do(os.rmdir, "p/q/r")
    case.do(os.mkdir, "p/q/r")
    case.exact["p/q/r/f"] = None
    case.exact["p/q/r/new"] = case.make("p/q/r/new")
    case.flush()
    return [{}]


@row()
def directory_replaced(case):
    """a directory is renamed over the emptied one of a partial file"""
    new = case.patch("p/q/r/f")
    case.exact.clear()
    case.do(os.unlink, "p/q/r/f")
    case.do(os.mkdir, "b/d")
    case.do(os.rename, "b/d", "p/q/r")
    case.flush()
    return [{"p/q/r/f": new}, {"p/q/r/f": None}]


@row()
def directory_moved(case):
    """a directory with a partial file is renamed (redirect)"""
    new = case.patch("p/q/r/f")
    case.exact.clear()
    case.do(os.rename, "p/q", "b/q")
    case.flush()
    return [{"p/q/r/f": new, "b/q/r/f": None}, {"p/q/r/f": None, "b/q/r/f": new}]


@row()
def directory_moved_synced(case):
    """the same, and the file is written to and synced there"""
    case.patch("p/q/r/f")
    case.do(os.rename, "p/q", "b/q")
    case.now["b/q/r/f"] = case.now["p/q/r/f"]
    case.patch("b/q/r/f", b"there")
    case.exact["p/q/r/f"] = None
    return [{}]


@row()
def directories_above(case):
    """directories above a synced file are copied up"""
    case.patch("p/q/r/f")
    return [{}]


@row()
def link(case):
    """a hard link to a partial file"""
    new = case.patch("a/f")
    case.do(os.link, "a/f", "b/l")
    case.flush()
    return [{"b/l": new}, {"b/l": None}]


@row()
def rotation(case):
    """segments of the journal begin and end, and files go"""
    for number in range(40):
        text = f"{number:04}".encode() * 3000
        case.patch(f"z/o{number % 4}", text, at=(number % 3) * 8192, sync=number % 4 != 1)
        if number % 4 == 1:
            case.exact.pop(f"z/o{number % 4}", None)
    case.exact.pop("z/o1", None)
    new = case.patch("a/f")
    case.exact.pop("a/f")
    case.do(os.unlink, "a/f")
    for number in range(40, 60):
        case.patch("z/o2", f"{number:04}".encode() * 3000, at=8192)
    return [{"a/f": new}, {"a/f": None}]


@row()
def kill_unlink(case):
    """unlink of a partial file; the server is killed, and another one flushes the journal"""
    new = case.patch("a/f")
    case.exact.pop("a/f")
    case.do(os.unlink, "a/f")
    case.replace_server()
    case.flush()
    return [{"a/f": new}, {"a/f": None}]


@row()
def kill_directory(case):
    """the same, and the directory went too"""
    new = case.patch("p/q/r/f")
    case.exact.pop("p/q/r/f")
    case.do(os.unlink, "p/q/r/f")
    case.do(os.rmdir, "p/q/r")
    case.replace_server()
    case.flush()
    return [{"p/q/r/f": new}, {"p/q/r/f": None}]


@row()
def kill_create(case):
    """a new partial file in new directories; another server syncs it"""
    case.patch("p/q/r/f", sync=False)
    case.replace_server()
    case.patch("p/q/r/f", b"after the kill", at=9 * CHUNK)
    return [{}]


@row()
def offline(case):
    """`union complete` has ended"""
    case.patch("a/f")
    case.patch("b/f", sync=False)
    case.exact["b/f"] = case.now["b/f"]
    case.union.unmount()
    case.union.command("complete", case.union.upper)
    return [{}]


@row()
def unmounted(case):
    """the union was unmounted"""
    case.patch("a/f")
    case.do(os.unlink, "a/f")
    case.patch("b/f", sync=False)
    case.exact.update({"a/f": None, "b/f": case.now["b/f"], "a/new": case.make("a/new", sync=False)})
    case.union.unmount()
    return [{}]


@row()
def sync_command(case):
    """`union sync`"""
    case.patch("a/f")
    case.do(os.unlink, "a/f")
    case.patch("b/f", sync=False)
    case.exact.update({"a/f": None, "b/f": case.now["b/f"], "a/new": case.make("a/new", sync=False)})
    case.union.command("sync", case.union.at)
    return [{}]


@row(more="chunk=4K,fill=keep,batch_ms=20")
def unasked(case):
    """within the batch time"""
    case.patch("a/f")
    case.do(os.unlink, "a/f")
    case.patch("b/f", sync=False)
    case.make("a/new", sync=False)
    time.sleep(2)
    case.exact.update({"a/f": None, "b/f": case.now["b/f"], "a/new": case.now["a/new"]})
    return [{}]


@row()
def synchronous_writes(case):
    """O_DSYNC, through the cache and past it"""
    def act(name, flags, per_write):
        file = os.open(name, os.O_RDWR | flags)
        # O_DIRECT takes memory that begins at a page.
        page = mmap.mmap(-1, CHUNK)
        page.write(b"S" * CHUNK)
        os.pwritev(file, [page], CHUNK, per_write)
        os.close(file)

    for path, flags, per_write in (("a/f", os.O_DSYNC, 0), ("b/f", os.O_DSYNC | os.O_DIRECT, 0),
                                   ("a/g", os.O_DIRECT, os.RWF_DSYNC), ("p/q/r/f", 0, os.RWF_SYNC),
                                   ("z/o7", os.O_SYNC | os.O_DIRECT, 0)):
        case.union.do(lambda at: act(at / path, flags, per_write))
        old = FILES[path]
        case.exact[path] = old[:CHUNK] + b"S" * CHUNK + old[2 * CHUNK:]
    return [{}]


@row(more="chunk=4K,fill=background,fill_free=0,batch_ms=10000")
def filling(case):
    """a file is made whole in the background, and removed"""
    new = case.patch("a/f")
    case.patch("b/f")
    deadline = time.monotonic() + WAIT_SECONDS
    while json.loads(case.union.command("status", "--json", case.union.at).stdout)["partial"]:
        assert time.monotonic() < deadline, "it is not filled"
        time.sleep(0.05)
    case.exact.pop("a/f")
    case.do(os.unlink, "a/f")
    case.flush()
    return [{"a/f": new}, {"a/f": None}]


@row(more="chunk=0,batch_ms=10000")
def whole_copy(case):
    """a file that is copied whole: created, and removed"""
    new, old = case.patch("a/f", sync=False), FILES["a/f"]
    case.patch("b/f")
    other = case.exact.pop("b/f")
    case.do(os.unlink, "b/f")
    case.flush()
    return [{"a/f": one, "b/f": two} for one in (new, old) for two in (other, None)]


@row(more="chunk=0,batch_ms=10000,redirect_dir=on")
def whole_copy_renamed(case):
    """a file that is copied whole: renamed over another one"""
    new, other = case.patch("a/f"), case.patch("b/f")
    case.exact.clear()
    case.do(os.rename, "a/f", "b/f")
    case.flush()
    return [{"a/f": new, "b/f": other}, {"a/f": None, "b/f": new}]


@row(more="chunk=0,index=on,batch_ms=10000", only=("xfs-root", "ext4-root", "writeback-root", "xfs-cut"))
def index(case):
    """one of several hard links is written to, with the index, and another one removed"""
    new = case.patch("l/one")
    case.exact["l/two"] = case.exact["l/three"] = new
    case.exact.pop("l/two")
    case.do(os.unlink, "l/two")
    case.flush()
    return [{"l/two": new}, {"l/two": None}]


@row(more="chunk=4K,volatile,batch_ms=10000")
def volatile(case):
    """nothing is synced; the next mount works"""
    case.patch("a/f")
    case.do(os.unlink, "a/g")
    case.exact.clear()
    return [{}]


@row()
def syncfs_on_upper(case):
    """syncfs(2) of the upper file system, for all but what waits"""
    case.patch("a/f", sync=False)
    case.do(os.unlink, "b/f")
    syncfs(case.union.disk.at)
    case.exact.update({"a/f": case.now["a/f"], "b/f": None})
    return [{}]
