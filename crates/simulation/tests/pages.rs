//! Scenes of the kernel's pages: which clients must drop them, when, and when they may be kept.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Change, Client, Dropping, Handle, Lending, OpenMode};
use protocol::InodeId;
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use reactor::time::{now, sleep};
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, Changes, DEVICE_BYTES, Stage, WRITE, bytes_of, filled, make, play_on_one,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long the kernel takes to drop pages.
const DROP: Duration = Duration::from_millis(2);
/// How long a busy kernel takes until it begins.
const BUSY: Duration = Duration::from_millis(300);
/// Longest time until a recall is answered when pages cannot be dropped.
const SOON: Duration = Duration::from_millis(500);

/// How long the kernel may be lent something.
const LENDING: Lending =
    Lending { attributes: Duration::from_secs(5), names: Duration::from_secs(5) };

/// Requests to the first node's kernel to drop pages.
#[derive(Clone, Default)]
struct Asked {
    /// Number of requests, including those without a wait.
    requests: Rc<Cell<u32>>,
    /// Number of times that it has dropped pages and confirmed it.
    dropped: Rc<Cell<u32>>,
    /// Whether it is busy with something else first.
    is_busy: Rc<Cell<bool>>,
    /// Whether it waits for locked pages.
    is_stuck: Rc<Cell<bool>>,
}

impl Asked {
    fn changes(&self) -> Changes {
        let asked = self.clone();
        Box::new(move |change| match change {
            Change::Inode(_) => asked.requests.set(asked.requests.get() + 1),
            Change::Pages(_, done) => {
                let asked = asked.clone();
                drop(reactor::spawn(async move {
                    if asked.is_busy.get() {
                        sleep(BUSY).await;
                    }
                    let _ = done.send(Dropping::Begun).await;
                    sleep(DROP).await;
                    while asked.is_stuck.get() {
                        sleep(DROP).await;
                    }
                    asked.dropped.set(asked.dropped.get() + 1);
                    let _ = done.send(Dropping::Done).await;
                }));
            }
            Change::Attributes { known, .. } => drop(known.try_send(true)),
            Change::Names(_, _, done) => drop(done.try_send(())),
            Change::AllNames(done) => drop(done.try_send(true)),
        })
    }
}

/// Plays a scene with two nodes and a file of the second. The first node has a kernel.
fn scene<F: Future<Output = ()>>(play: impl FnOnce(Stage, Asked, Arc<Gate>, InodeId) -> F) {
    let asked = Asked::default();
    let kernel = asked.clone();
    let changes = move |node| (node == 0).then(|| kernel.changes());
    let device = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
    let gate = Arc::clone(&device);
    play_on_one(device, 2, changes, async move |stage| {
        let inode = stage.on(1, async |client| make(&client, b"a", 1, 4096).await).await;
        play(stage, asked, gate, inode).await;
    });
}

async fn open(stage: &Stage, inode: InodeId, mode: OpenMode) -> Rc<Handle> {
    let open = async move |client: Rc<Client>| client.open(inode, mode).await.unwrap().0;
    Rc::new(stage.on(0, open).await)
}

/// Writes on a node and commits.
async fn write(stage: &Stage, node: usize, inode: InodeId, byte: u8) {
    let write = async move |client: Rc<Client>| {
        let (handle, _) = client.open(inode, WRITE).await.unwrap();
        client.write(&handle, 0, filled(byte, 4096), false).await.unwrap();
        client.release(&handle).await.unwrap();
    };
    stage.on(node, write).await;
}

/// Writes through the pages of the first node's kernel, and commits.
async fn write_through(stage: &Stage, handle: &Rc<Handle>, byte: u8) {
    let handle = Rc::clone(handle);
    let write = async move |client: Rc<Client>| {
        let came = now();
        client.write(&handle, 0, filled(byte, 4096), false).await.unwrap();
        client.written_through(handle.inode(), came).await;
        client.flush(&handle).await.unwrap();
    };
    stage.on(0, write).await;
}

/// Returns whether an open on the first node lets its kernel keep its pages.
async fn keeps(stage: &Stage, inode: InodeId) -> bool {
    let keeps = async move |client: Rc<Client>| {
        let attr = client.attr(inode).await.unwrap();
        client.keeps_cache(&attr)
    };
    stage.on(0, keeps).await
}

/// Goal: another client's commit returns when the pages of an open file are dropped, both those
/// that were read and those that were written through (R19).
#[test]
fn a_commit_returns_when_others_have_dropped_their_pages() {
    for is_written in [false, true] {
        scene(async |stage, asked, _, inode| {
            let handle = open(&stage, inode, WRITE).await;
            assert!(!keeps(&stage, inode).await);
            if is_written {
                write_through(&stage, &handle, 2).await;
            } else {
                let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..10).await;
                assert_eq!(stage.on(0, read).await.unwrap(), [1; 10]);
            }
            assert_eq!(asked.dropped.get(), 0, "nothing has changed");
            write(&stage, 1, inode, 3).await;
            assert_eq!(asked.dropped.get(), 1, "the pages are still there");
        });
    }
}

/// Goal: a kernel that is busy drops its pages before another client's commit returns, too (R19).
#[test]
fn a_commit_waits_for_a_busy_kernel() {
    scene(async |stage, asked, _, inode| {
        let _handle = open(&stage, inode, OpenMode::default()).await;
        let client = stage.on(0, async move |client: Rc<Client>| client).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..10).await;
        stage.on(0, read).await.unwrap();
        asked.is_busy.set(true);
        let _reading = client.reads_through_pages(inode);
        write(&stage, 1, inode, 3).await;
        assert_eq!(asked.dropped.get(), 1, "the pages are still there");
    });
}

/// Goal: a kernel that takes long to drop many pages, none of them locked by a request, drops them
/// before another client's commit returns (R19).
#[test]
fn a_commit_waits_for_many_pages() {
    scene(async |stage, asked, _, inode| {
        let _handle = open(&stage, inode, OpenMode::default()).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..10).await;
        stage.on(0, read).await.unwrap();
        asked.is_stuck.set(true);
        let slow = asked.clone();
        drop(reactor::spawn(async move {
            sleep(BUSY).await;
            slow.is_stuck.set(false);
        }));
        write(&stage, 1, inode, 3).await;
        assert_eq!(asked.dropped.get(), 1, "the pages are still there");
    });
}

/// Goal: a kernel that cannot drop its pages, because they are locked, does not delay others for
/// long. It gets no further request, which would make it ignore attributes that are on their way to
/// it. These wait for the pages, but not for long either. The pages count as dropped in the end
/// (R19).
#[test]
fn locked_pages_do_not_hold_a_commit_up() {
    scene(async |stage, asked, _, inode| {
        let _handle = open(&stage, inode, OpenMode::default()).await;
        let client = stage.on(0, async move |client: Rc<Client>| client).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..10).await;
        stage.on(0, read).await.unwrap();
        asked.is_stuck.set(true);
        let reading = client.reads_through_pages(inode);
        let (begun, requests) = (now(), asked.requests.get());
        write(&stage, 1, inode, 3).await;
        assert!(begun.elapsed() < SOON, "the commit took {:?}", begun.elapsed());
        assert_eq!(asked.dropped.get(), 0);
        let begun = now();
        client.late_drops_end(inode).await;
        assert!(begun.elapsed() < SOON, "attributes took {:?}", begun.elapsed());
        asked.is_stuck.set(false);
        drop(reading);
        client.late_drops_end(inode).await;
        assert_eq!(asked.dropped.get(), 1, "attributes do not wait for the pages");
        assert_eq!(asked.requests.get(), requests, "the kernel is asked again");
        let lock = Lock {
            inode,
            family: LockFamily::Posix,
            owner: LockOwner(1),
            start: 0,
            last: u64::MAX,
            mode: LockMode::Shared,
            pid: 1,
        };
        stage.on(0, async move |client| client.lock(lock, false).await).await.unwrap();
        assert_eq!(asked.dropped.get(), 1, "a lock asks for pages that are dropped");
    });
}

/// Goal: pages are kept from one open to the next only if all changes of the file since were writes
/// through them, and no writes past them or by others (R20).
#[test]
fn pages_that_have_all_writes_are_kept() {
    scene(async |stage, _, _, inode| {
        let handle = open(&stage, inode, WRITE).await;
        keeps(&stage, inode).await;
        assert!(keeps(&stage, inode).await, "nothing was written");
        write_through(&stage, &handle, 2).await;
        assert!(keeps(&stage, inode).await, "the pages have the write");
        let past = Rc::clone(&handle);
        let pass_by = async move |client: Rc<Client>| {
            let _passing = client.pass_pages_by(past.inode());
            client.write(&past, 0, filled(3, 4096), false).await.unwrap();
            client.flush(&past).await.unwrap();
        };
        stage.on(0, pass_by).await;
        assert!(!keeps(&stage, inode).await, "the pages lack the write past them");
        write_through(&stage, &handle, 4).await;
        assert!(keeps(&stage, inode).await);
        write(&stage, 1, inode, 5).await;
        stage.on(0, async move |client| client.attr(inode).await.unwrap()).await;
        write_through(&stage, &handle, 6).await;
        assert!(!keeps(&stage, inode).await, "another client has written before");
    });
}

/// Goal: an open during a write past the pages, or before that write is committed, may read pages
/// that lack the write: no later open keeps them (R20).
#[test]
fn a_write_past_pages_counts_until_it_is_done() {
    scene(async |stage, _, _, inode| {
        let handle = open(&stage, inode, WRITE).await;
        let client = async move |client: Rc<Client>| client;
        let client = stage.on(0, client).await;
        let passing = client.pass_pages_by(inode);
        keeps(&stage, inode).await;
        let past = Rc::clone(&handle);
        let write = async move |client: Rc<Client>| {
            client.write(&past, 0, filled(3, 4096), false).await.unwrap();
        };
        stage.on(0, write).await;
        drop(passing);
        assert!(!keeps(&stage, inode).await, "the write is not committed yet");
        let passing = client.pass_pages_by(inode);
        keeps(&stage, inode).await;
        let flush = async move |client: Rc<Client>| client.flush(&handle).await.unwrap();
        stage.on(0, flush).await;
        drop(passing);
        assert!(!keeps(&stage, inode).await, "the write is committed");
        assert!(keeps(&stage, inode).await, "the pages have all writes now");
    });
}

/// Goal: the kernel counts as knowing a file's end if it was lent the attributes, and until others
/// may have changed the file (R23).
#[test]
fn who_shares_a_file_does_not_know_its_end() {
    scene(async |stage, _, _, inode| {
        let client = stage.on(0, async move |client: Rc<Client>| client).await;
        client.set_lending(LENDING);
        let handle = open(&stage, inode, WRITE).await;
        assert!(!client.kernel_knows_end(inode), "the kernel has no attributes");
        let lend = async move |client: Rc<Client>| {
            let attr = client.attr(inode).await.unwrap();
            client.lend_attributes(&attr)
        };
        assert!(!stage.on(0, lend).await.is_zero());
        assert!(client.kernel_knows_end(inode));
        let writer = client.writes_through_pages(inode);
        write_through(&stage, &handle, 2).await;
        assert!(client.kernel_knows_end(inode), "the kernel has written itself");
        write(&stage, 1, inode, 3).await;
        assert!(!stage.on(0, lend).await.is_zero());
        assert!(!client.kernel_knows_end(inode), "others have written");
        drop(writer);
        assert!(client.kernel_knows_end(inode), "no writer uses the pages");
    });
}

/// Goal: a write past pages that another writer uses is not missing in those pages afterwards
/// (R23).
#[test]
fn pages_that_a_writer_uses_are_dropped_after_a_write_past_them() {
    scene(async |stage, asked, _, inode| {
        let client = stage.on(0, async move |client: Rc<Client>| client).await;
        let _handle = open(&stage, inode, WRITE).await;
        let past = async move |client: Rc<Client>| {
            let read = bytes_of(&client, inode, 0..10).await;
            client.written_past(inode, now()).await;
            read.unwrap()
        };
        stage.on(0, past).await;
        assert_eq!(asked.dropped.get(), 0, "no writer uses the pages");
        let writer = client.writes_through_pages(inode);
        stage.on(0, past).await;
        assert_eq!(asked.dropped.get(), 1);
        drop(writer);
        drop(client.reads_through_pages(inode));
        stage.on(0, past).await;
        assert_eq!(asked.dropped.get(), 2, "a page may have been read without the write");
        sleep(Duration::from_secs(1)).await;
        stage.on(0, past).await;
        assert_eq!(
            asked.dropped.get(),
            2,
            "the kernel has dropped the page before it sent the write"
        );
    });
}

/// Goal: if a page was dropped while a write through it was on its way, and was read again before
/// the write arrived, it is dropped once more before the write returns (R21).
#[test]
fn a_page_that_was_read_before_a_write_came_is_dropped() {
    scene(async |stage, asked, _, inode| {
        let handle = open(&stage, inode, WRITE).await;
        // An open drops the pages, and a read overtakes the write.
        keeps(&stage, inode).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..10).await;
        stage.on(0, read).await.unwrap();
        write_through(&stage, &handle, 2).await;
        assert_eq!(asked.dropped.get(), 1, "the page is kept without the write");
        sleep(Duration::from_secs(1)).await;
        stage.on(0, read).await.unwrap();
        write_through(&stage, &handle, 3).await;
        assert_eq!(asked.dropped.get(), 1, "nothing was dropped for long");
    });
}

/// Goal: when data is lost because its device refuses it, no page of it is left (R22).
#[test]
fn pages_of_lost_data_are_dropped() {
    scene(async |stage, asked, gate, inode| {
        let handle = open(&stage, inode, WRITE).await;
        keeps(&stage, inode).await;
        let requests = asked.requests.get();
        gate.writes().fail_next();
        let failing = Rc::clone(&handle);
        let write = async move |client: Rc<Client>| {
            client.write(&failing, 0, filled(2, 4096), false).await.unwrap();
            client.written_through(failing.inode(), now()).await;
            client.flush(&failing).await
        };
        assert!(stage.on(0, write).await.is_err());
        assert!(asked.requests.get() > requests, "the kernel keeps lost data");
        assert!(!keeps(&stage, inode).await);
    });
}
