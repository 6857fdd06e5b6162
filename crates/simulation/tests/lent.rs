//! Scenes of data lent to a cache above a client: another client's change is carried out only after
//! the lent data is taken back or has expired, even if the cache, the client or its connection
//! fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "power_cut/cluster.rs"]
mod cluster;

use block::{Incarnation, MemoryBacking};
use client::{Change, Client, Dropping, Lending, OpenMode, Setting};
use cluster::{Changes, machines, start_meta, start_node, start_node_with};
use meta::store::{CrashPoint, MemoryStore};
use node::NodeDevice;
use protocol::attr::AttrChanges;
use protocol::client::{Creation, RenameMode};
use protocol::files::NewFile;
use protocol::inline::Bytes;
use protocol::times::{LENT, SELF_STOP};
use protocol::{Attr, InodeId, Timestamp};
use reactor::Buffer;
use reactor::sim::{Network, Node};
use reactor::time::{Instant, now, sleep};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const LENDING: Lending = Lending { attributes: LENT, names: LENT };
/// Longest time of a change that waits for no cache.
const PROMPT: Duration = Duration::from_millis(200);

/// A request to the cache to drop something.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DropRequest {
    Attributes(InodeId),
    Names(InodeId, Vec<(Vec<u8>, bool)>),
    AllNames,
}

/// A cache with a behaviour that the scene chooses.
#[derive(Debug, Default)]
struct Cache {
    requests: RefCell<Vec<DropRequest>>,
    /// How often it answers that it does not know the inode yet.
    unknown: Cell<u32>,
    /// Whether it answers nothing, because its process is stopped.
    is_stopped: Cell<bool>,
    /// Whether directories are locked, so that no single name can be dropped.
    is_busy: Cell<bool>,
    /// Whether the cache cannot drop all names at once.
    has_no_epochs: Cell<bool>,
}

impl Cache {
    fn hear(&self, change: Change) {
        let request = match &change {
            Change::Inode(_) => return,
            Change::Pages(_, done) => {
                let _ = done.try_send(Dropping::Done);
                return;
            }
            Change::Attributes { inode, .. } => DropRequest::Attributes(*inode),
            Change::Names(inode, names, _) => {
                let names = names.iter().map(|lent| (lent.name.clone(), lent.expires_only));
                DropRequest::Names(*inode, names.collect())
            }
            Change::AllNames(_) => DropRequest::AllNames,
        };
        self.requests.borrow_mut().push(request);
        if self.is_stopped.get() {
            // Its queue has room, but no task reads from it.
            return std::mem::forget(change);
        }
        match change {
            Change::Attributes { known: answer, .. } => {
                let unknown = self.unknown.get();
                self.unknown.set(unknown.saturating_sub(1));
                answer.try_send(unknown == 0).unwrap();
            }
            Change::Names(_, _, answer) if self.is_busy.get() => std::mem::forget(answer),
            Change::Names(_, _, answer) => answer.try_send(()).unwrap(),
            Change::AllNames(answer) => answer.try_send(!self.has_no_epochs.get()).unwrap(),
            Change::Inode(_) | Change::Pages(..) => {}
        }
    }

    fn requests(&self) -> Vec<DropRequest> {
        self.requests.borrow().clone()
    }
}

struct Scene {
    network: Network,
    meta: Node,
    store: RefCell<MemoryStore>,
    /// The nodes. The first has the cache.
    nodes: Vec<Node>,
    lender: Rc<Client>,
    changer: Rc<Client>,
    cache: Rc<Cache>,
}

impl Scene {
    async fn on<F: Future + 'static>(
        &self,
        node: usize,
        act: impl FnOnce(Rc<Client>) -> F,
    ) -> F::Output {
        let client = if node == 0 { &self.lender } else { &self.changer };
        self.nodes[node].spawn(act(Rc::clone(client))).await.unwrap()
    }

    /// The lender makes a file and its cache looks it up. Returns the attributes as lent.
    async fn lend_file(&self, name: &'static [u8]) -> Attr {
        let attr = self.on(0, async move |client| {
            let made = client.make(ROOT, name, Creation::File, SETTING).await.unwrap();
            let attr = client.attr(made.inode).await.unwrap();
            assert!(!client.lend_attributes(&attr).is_zero());
            assert!(!client.lend_name(ROOT, name, Some(&attr)).is_zero());
            attr
        });
        attr.await
    }

    /// The other client changes a mode. Returns how long that took.
    async fn change(&self, attr: Attr) -> Duration {
        let begun = now();
        self.on(1, async move |client| {
            let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
            client.set_attr(attr.inode, changes).await.unwrap();
        })
        .await;
        begun.elapsed()
    }

    /// The other client makes a file under a name. Returns how long that took.
    async fn create(&self, name: &'static [u8]) -> Duration {
        let begun = now();
        self.on(1, async move |client| {
            client.make(ROOT, name, Creation::File, SETTING).await.unwrap();
        })
        .await;
        begun.elapsed()
    }

    /// The cache looks up a name that does not exist. Returns whether it may cache that.
    async fn lend_absent(&self, name: &'static [u8]) -> bool {
        self.on(0, async move |client| {
            client.lookup(ROOT, name).await.unwrap_err();
            !client.lend_name(ROOT, name, None).is_zero()
        })
        .await
    }
}

fn play<F: Future<Output = ()>>(scene: impl FnOnce(Scene) -> F) {
    let (mut simulation, meta, nodes) = machines(1, 2);
    let network = simulation.network();
    let whole = async move {
        let store = MemoryStore::new();
        start_meta(&meta, Box::new(store.clone()), 1);
        let memory = || Arc::new(MemoryBacking::new(4 << 20, 4096).unwrap());
        let cache = Rc::new(Cache::default());
        let hearing = Rc::clone(&cache);
        let changes: Changes = Box::new(move |change| hearing.hear(change));
        let machine = |index: usize| (meta.clone(), nodes[index].clone());
        let device = NodeDevice {
            uuid: Uuid::from_u128(100),
            incarnation: Incarnation(1),
            is_volatile: false,
            backing: memory(),
        };
        let lender = start_node_with(&machine(0), 0, vec![device], Some(changes)).await;
        let changer = start_node(&machine(1), 1, memory(), 1).await;
        lender.set_lending(LENDING);
        let store = RefCell::new(store);
        scene(Scene { network, meta: meta.clone(), store, nodes, lender, changer, cache }).await;
    };
    simulation.run(whole).unwrap();
}

fn names(names: &[(&[u8], bool)]) -> DropRequest {
    DropRequest::Names(
        ROOT,
        names.iter().map(|(name, expires)| (name.to_vec(), *expires)).collect(),
    )
}

/// Goal: a change waits until the cache has dropped what was lent, and for nothing else.
#[test]
fn a_change_waits_for_the_cache() {
    play(async |scene| {
        let attr = scene.lend_file(b"a").await;
        assert!(scene.change(attr).await < PROMPT);
        assert_eq!(scene.cache.requests(), [DropRequest::Attributes(attr.inode)]);
        assert!(scene.change(attr).await < PROMPT);
        assert_eq!(scene.cache.requests().len(), 1, "nothing is lent any more");
    });
}

/// Goal: when an answer about an inode is on its way, the client repeats its request until the
/// cache knows the inode.
#[test]
fn what_a_cache_does_not_know_yet_is_told_again() {
    play(async |scene| {
        let attr = scene.lend_file(b"a").await;
        scene.cache.unknown.set(7);
        scene.change(attr).await;
        assert_eq!(scene.cache.requests(), vec![DropRequest::Attributes(attr.inode); 8]);
    });
}

/// Goal: a change does not wait for a cache that has forgotten the inode.
#[test]
fn what_a_cache_has_forgotten_is_gone() {
    play(async |scene| {
        let attr = scene.lend_file(b"a").await;
        scene.cache.unknown.set(u32::MAX);
        scene.on(0, async move |client| client.forget(attr.inode, 1)).await;
        assert!(scene.change(attr).await < PROMPT);
    });
}

/// Goal: a directory stays lent while this client changes names in it. The cache drops its older
/// attributes, because an answer on its way may carry them.
#[test]
fn own_changes_of_a_directory_are_told() {
    play(async |scene| {
        scene
            .on(0, async |client| {
                let before = client.attr(ROOT).await.unwrap();
                assert!(!client.lend_attributes(&before).is_zero());
                client.make(ROOT, b"a", Creation::File, SETTING).await.unwrap();
                client.own_changes_told().await;
                assert!(
                    client.lend_attributes(&before).is_zero(),
                    "the attributes are older than the change"
                );
                let after = client.attr(ROOT).await.unwrap();
                assert!(!client.lend_attributes(&after).is_zero());
            })
            .await;
        assert_eq!(scene.cache.requests(), [DropRequest::Attributes(ROOT)]);
    });
}

/// Goal: names that this client makes without the cache's knowledge are dropped where the cache
/// knows them as absent, before the call returns. Nothing else that is lent changes (D10).
#[test]
fn files_made_at_once_are_told_to_the_own_cache() {
    play(async |scene| {
        assert!(scene.lend_absent(b"a").await);
        assert!(scene.lend_absent(b"b").await);
        let new = |name: &[u8]| NewFile {
            name: name.to_vec(),
            mode: 0o600,
            uid: 0,
            gid: 0,
            atime: Timestamp(1),
            mtime: Timestamp(1),
            bytes: Bytes::default(),
            sum: None,
        };
        let files = vec![new(b"a"), new(b"c")];
        scene.on(0, async |client| client.create_files(ROOT, files).await.unwrap()).await;
        assert_eq!(scene.cache.requests(), [names(&[(b"a", false)])]);
        assert!(scene.lend_absent(b"d").await, "the directory still lends");
    });
}

/// Goal: if a cache does not answer, the change is carried out only after what was lent has
/// expired.
#[test]
fn a_stopped_cache_is_waited_out() {
    play(async |scene| {
        let attr = scene.lend_file(b"a").await;
        let lent = now();
        scene.cache.is_stopped.set(true);
        sleep(Duration::from_secs(1)).await;
        scene.change(attr).await;
        assert!(lent.elapsed() >= LENT, "only {:?}", lent.elapsed());
        assert!(lent.elapsed() < LENT + PROMPT);
    });
}

/// Goal: only the name of a directory that changes is dropped. The right to know the others stays.
#[test]
fn a_name_is_dropped_alone() {
    play(async |scene| {
        scene.lend_file(b"a").await;
        assert!(scene.lend_absent(b"b").await);
        assert!(scene.create(b"b").await < PROMPT);
        assert_eq!(scene.cache.requests(), [names(&[(b"b", false)])]);
    });
}

/// Goal: where a directory is locked, all names are dropped at once. A cache that cannot do that
/// keeps them until they expire.
#[test]
fn a_locked_directory_holds_nobody_up() {
    play(async |scene| {
        assert!(scene.lend_absent(b"b").await);
        scene.cache.is_busy.set(true);
        assert!(scene.create(b"b").await < PROMPT);
        assert_eq!(scene.cache.requests(), [names(&[(b"b", false)]), DropRequest::AllNames]);
        assert!(!scene.lend_absent(b"c").await, "others change names here");
        sleep(Duration::from_secs(11)).await;
        assert!(scene.lend_absent(b"c").await);
        scene.cache.has_no_epochs.set(true);
        let waited = scene.create(b"c").await;
        assert!(waited + PROMPT > LENT && waited < LENT + PROMPT, "{waited:?}");
    });
}

/// Goal: while things are being taken back for one change, a second change waits for them as well.
#[test]
fn a_second_change_does_not_overtake_the_first() {
    play(async |scene| {
        assert!(scene.lend_absent(b"b").await);
        let lent = now();
        scene.cache.is_busy.set(true);
        scene.cache.has_no_epochs.set(true);
        let made = scene.on(1, async |client| {
            let other = Rc::clone(&client);
            let first = reactor::spawn(async move {
                let _ = other.make(ROOT, b"b", Creation::File, SETTING).await;
            });
            sleep(Duration::from_millis(100)).await;
            let _ = client.make(ROOT, b"b", Creation::Directory, SETTING).await;
            drop(first);
            now()
        });
        let waited = made.await.since(lent);
        assert!(waited + PROMPT > LENT, "after {waited:?}");
    });
}

/// Goal: a name that this client moves is lent under its new directory.
#[test]
fn a_moved_name_is_lent_where_it_went() {
    play(async |scene| {
        scene.lend_file(b"a").await;
        scene
            .on(0, async |client| {
                client.rename((ROOT, b"a"), (ROOT, b"z"), RenameMode::Replace).await.unwrap();
            })
            .await;
        scene.on(1, async |client| client.unlink(ROOT, b"z").await.unwrap()).await;
        assert!(
            scene.cache.requests().contains(&names(&[(b"z", false)])),
            "{:?}",
            scene.cache.requests()
        );
    });
}

/// Goal: nothing is lent beyond the moment at which the client would stop itself.
#[test]
fn nothing_is_lent_past_self_stop() {
    play(async |scene| {
        let attr = scene.lend_file(b"a").await;
        let cut = now();
        scene.network.cut(&scene.meta, &scene.nodes[0]);
        let last: Option<Instant> = scene
            .on(0, async move |client| {
                let mut last = None;
                while cut.elapsed() < SELF_STOP * 2 {
                    let valid = client.lend_attributes(&attr);
                    if !valid.is_zero() {
                        last = last.max(Some(now() + valid));
                    }
                    sleep(Duration::from_millis(100)).await;
                }
                last
            })
            .await;
        // The last heartbeat that was answered was sent before.
        assert!(last.is_some_and(|last| last < cut + SELF_STOP), "{last:?}, cut at {cut:?}");
    });
}

/// Goal: a session continues over a new connection only after everything that was lent is taken
/// back, because from then on the cache gets no notice of changes to what it knew before.
#[test]
fn a_resumed_session_has_taken_back_everything() {
    play(async |scene| {
        let attr = scene.lend_file(b"a").await;
        let lent = now();
        scene.cache.is_stopped.set(true);
        scene.network.reset(&scene.meta, &scene.nodes[0]);
        scene.change(attr).await;
        assert!(lent.elapsed() >= LENT, "only {:?}", lent.elapsed());
    });
}

/// Goal: the same after a restart of the service, which then knows no rights.
#[test]
fn a_restarted_service_waits_for_what_was_lent() {
    play(async |scene| {
        let attr = scene.lend_file(b"a").await;
        let lent = now();
        scene.cache.is_stopped.set(true);
        scene.meta.kill();
        let store = scene.store.borrow().crashed(CrashPoint::Process);
        scene.store.replace(store.clone());
        start_meta(&scene.meta, Box::new(store), 1);
        scene.change(attr).await;
        assert!(lent.elapsed() >= LENT, "only {:?}", lent.elapsed());
    });
}

/// Goal: attributes are not lent while this client has uncommitted writes, because its commit
/// changes them.
#[test]
fn uncommitted_writes_lend_no_attributes() {
    play(async |scene| {
        let lent = |client: Rc<Client>| async move {
            let mode = OpenMode { write: true, append: false, sync: false };
            let (handle, attr) = client.create(ROOT, b"a", SETTING, mode).await.unwrap();
            client.write(&handle, 0, Buffer::copy_from(b"bytes").into(), false).await.unwrap();
            let mut lent = Vec::new();
            for is_committed in [false, true] {
                if is_committed {
                    client.fsync(attr.inode).await.unwrap();
                }
                let attr = client.attr(attr.inode).await.unwrap();
                lent.push(!client.lend_attributes(&attr).is_zero());
            }
            client.release(&handle).await.unwrap();
            lent
        };
        assert_eq!(scene.on(0, lent).await, [false, true]);
    });
}

/// Goal: listings may be cached as long as no name has changed.
#[test]
fn a_listing_is_kept_until_a_name_changes() {
    play(async |scene| {
        scene.lend_file(b"a").await;
        // Opens the directory while an answer may be on its way, and twice when no answer is on its
        // way any more.
        let opens = async || {
            let open = async |client: Rc<Client>| {
                client.attr(ROOT).await.unwrap();
                client.lend_listing(ROOT)
            };
            let soon = scene.on(0, open).await;
            sleep(PROMPT).await;
            (soon, scene.on(0, open).await, scene.on(0, open).await)
        };
        let expected = ((false, false), (true, false), (true, true));
        assert_eq!(opens().await, expected);
        scene.create(b"b").await;
        assert_eq!(opens().await, expected);
        let make = async |client: Rc<Client>| {
            client.make(ROOT, b"c", Creation::File, SETTING).await.unwrap();
        };
        scene.on(0, make).await;
        assert_eq!(opens().await, expected);
    });
}
