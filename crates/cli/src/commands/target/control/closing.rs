//! Namespaces that hosts no longer see: their last commands may still run, and their data may not be
//! durable yet.
//!
//! The change that removes a namespace waits for its commands, then flushes it. If the commands take
//! too long, or the target ends, the namespace stays in the list: a thread flushes it after its last
//! command, and the end of the target flushes all that are left.

use super::Control;
use super::report::Report;
use crate::commands::target::namespace::NamespaceSettings;
use block::Backing;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;
use target::Namespace;

/// How long a change waits for a removed namespace's last commands.
pub(super) const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
const CLOSE_PAUSE: Duration = Duration::from_millis(1);
/// Pause between two looks at namespaces with commands that take long.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A namespace that hosts no longer see.
pub(super) struct Closing {
    name: String,
    uuid: [u8; 16],
    namespace: Weak<Namespace>,
    backing: Arc<dyn Backing>,
    /// For a shrunk namespace: its settings and its present size; the bytes beyond it are given back.
    shrunk: Option<(NamespaceSettings, AtomicU64)>,
    /// Whether the change has stopped waiting for it.
    is_left: AtomicBool,
}

impl Closing {
    /// Returns whether commands still run on it.
    fn is_in_use(&self) -> bool {
        self.namespace.strong_count() > 0
    }

    /// Returns whether it became smaller.
    fn is_shrunk(&self) -> bool {
        self.shrunk.is_some()
    }

    /// Makes its data durable.
    async fn flush(&self) -> Result<(), block::Error> {
        self.backing.attach().flush().await
    }

    /// Gives back the bytes beyond its new end, if it was shrunk. No command may run on it, and no
    /// change may be under way, which could enlarge it.
    async fn give_back(&self) -> anyhow::Result<()> {
        match &self.shrunk {
            Some((settings, bytes)) => {
                settings.give_back(&self.backing, bytes.load(Ordering::Relaxed)).await
            }
            None => Ok(()),
        }
    }
}

/// All namespaces that are not closed yet.
#[derive(Default)]
pub(super) struct Closings {
    /// Held during a change of the target, and while a shrunk file is cut after its change.
    pub(super) changing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    all: Vec<Arc<Closing>>,
    /// Whether a thread waits for those that changes have left.
    is_followed: bool,
}

impl Closings {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a namespace that hosts no longer see.
    pub(super) fn add(
        &self,
        name: String,
        namespace: &Arc<Namespace>,
        shrunk: Option<(NamespaceSettings, u64)>,
    ) -> Arc<Closing> {
        let closing = Arc::new(Closing {
            name,
            uuid: namespace.uuid(),
            namespace: Arc::downgrade(namespace),
            backing: Arc::clone(namespace.backing()),
            shrunk: shrunk.map(|(settings, bytes)| (settings, AtomicU64::new(bytes))),
            is_left: AtomicBool::new(false),
        });
        self.state().all.push(Arc::clone(&closing));
        closing
    }

    /// Notes that a namespace has a new size: what earlier shrinks give back begins there.
    pub(super) fn resized(&self, uuid: [u8; 16], bytes: u64) {
        for closing in self.state().all.iter().filter(|it| it.uuid == uuid) {
            if let Some((_, end)) = &closing.shrunk {
                end.store(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Removes a namespace that is closed.
    fn remove(&self, closing: &Arc<Closing>) {
        self.state().all.retain(|it| !Arc::ptr_eq(it, closing));
    }

    /// Leaves a namespace to a thread that flushes it after its last command.
    fn leave(self: &Arc<Self>, closing: &Closing) {
        closing.is_left.store(true, Ordering::Relaxed);
        if std::mem::replace(&mut self.state().is_followed, true) {
            return;
        }
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name("closing".into());
        if let Err(error) = thread.spawn(move || this.follow()) {
            tracing::warn!(%error, "removed namespaces are flushed only when the target ends");
            self.state().is_followed = false;
        }
    }

    /// Flushes each namespace that changes have left after its last command, until there are none.
    fn follow(&self) {
        let mut runtime = match reactor::Runtime::new(&reactor::Config::default()) {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::warn!(%error, "removed namespaces are flushed only when the target ends");
                self.state().is_followed = false;
                return;
            }
        };
        while let Some(left) = self.left() {
            // A change that waits for closed namespaces must not wait for this thread.
            let alone = match self.changing.try_lock() {
                Ok(alone) => Some(alone),
                Err(TryLockError::Poisoned(alone)) => Some(alone.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            let can_close =
                |it: &&Arc<Closing>| !it.is_in_use() && (alone.is_some() || !it.is_shrunk());
            runtime.block_on(async {
                for closing in left.iter().filter(can_close) {
                    if let Err(error) = closing.flush().await {
                        eprintln!("tsumugi: {} cannot be flushed: {error}", closing.name);
                    }
                    if let Err(error) = closing.give_back().await {
                        let name = &closing.name;
                        eprintln!("tsumugi: the space of {name} is not given back: {error:#}");
                    }
                    self.remove(closing);
                }
            });
            drop((left, alone));
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// Returns the namespaces that changes have left; [`None`] ends the thread.
    fn left(&self) -> Option<Vec<Arc<Closing>>> {
        let mut state = self.state();
        let is_left = |it: &&Arc<Closing>| it.is_left.load(Ordering::Relaxed);
        let left: Vec<_> = state.all.iter().filter(is_left).cloned().collect();
        state.is_followed = !left.is_empty();
        state.is_followed.then_some(left)
    }

    /// Flushes all namespaces that are not closed yet, and cuts the files of those that were shrunk.
    /// Their commands and all changes must have ended.
    ///
    /// # Errors
    /// The first failure to flush; the others are flushed all the same.
    pub(super) async fn flush(&self) -> Result<(), block::Error> {
        let all = self.state().all.clone();
        let mut result = Ok(());
        for closing in all {
            result = result.and(closing.flush().await);
            if let Err(error) = closing.give_back().await {
                let name = &closing.name;
                eprintln!("tsumugi: the space of {name} is not given back: {error:#}");
            }
        }
        result
    }
}

impl Control {
    /// Waits until no command runs on removed namespaces, and makes their data durable. Returns the
    /// UUIDs of those that are left in use, to be flushed later.
    pub(super) async fn close(
        &self,
        closing: Vec<Arc<Closing>>,
        report: &mut Report,
    ) -> Vec<[u8; 16]> {
        let deadline = reactor::time::now() + CLOSE_PATIENCE;
        let mut in_use = Vec::new();
        for closing in closing {
            // A file must be cut before the end: its settings have the new size.
            let is_hurried = || self.is_ending() && !closing.is_shrunk();
            while closing.is_in_use() && reactor::time::now() < deadline && !is_hurried() {
                reactor::time::sleep(CLOSE_PAUSE).await;
            }
            let name = &closing.name;
            if closing.is_in_use() {
                report.warnings.push(format!(
                    "{name} is still used by commands that run, and closes after the last of them"
                ));
                in_use.push(closing.uuid);
                self.closings.leave(&closing);
                continue;
            }
            if let Err(error) = closing.flush().await {
                report.warnings.push(format!("{name} cannot be flushed: {error}"));
            }
            if let Err(error) = closing.give_back().await {
                report.warnings.push(format!("the space of {name} is not given back: {error:#}"));
            }
            self.closings.remove(&closing);
        }
        in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::MemoryBacking;
    use nvme::Nsid;
    use reactor::Buffer;
    use volume::Pool;

    /// Goal: the file of a shrunk namespace is cut after its last command, however long that took, and
    /// in any case at the end of the target; at the size that it has by then.
    #[test]
    fn shrunk_files_are_cut() {
        let mut runtime = reactor::Runtime::new(&reactor::Config::default()).unwrap();
        runtime.block_on(async {
            for (is_end, is_changing, grown) in
                [(false, false, None), (true, false, None), (false, true, Some(3 << 20))]
            {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("disk");
                let text = format!("file:{},size=4M,buffered", path.display());
                let settings: NamespaceSettings = text.parse().unwrap();
                settings.prepare().await.unwrap();
                let uuid = settings.uuid().await.unwrap();
                let backing = settings.open(uuid).await.unwrap();
                let namespace = Arc::new(Namespace::new(Nsid(1), [1; 16], backing, false));
                let closings = Arc::<Closings>::default();
                let closing = closings.add("a".into(), &namespace, Some((settings, 1 << 20)));
                let length = || std::fs::metadata(&path).unwrap().len();
                closings.leave(&closing);
                assert_eq!(length(), 4 << 20, "commands still run");
                let change = is_changing.then(|| closings.changing.lock().unwrap());
                if is_end {
                    closings.flush().await.unwrap();
                } else {
                    drop(namespace);
                }
                if let Some(bytes) = grown {
                    closings.resized([1; 16], bytes);
                }
                drop(change);
                while !is_end && !closings.state().all.is_empty() {
                    reactor::time::sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(length(), grown.unwrap_or(1 << 20));
            }
        });
    }

    /// Goal: acknowledged writes to a volume are durable after the last command of its removed
    /// namespace, and in any case at the end of the target.
    #[test]
    fn removed_volumes_are_flushed() {
        reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
            for is_end in [false, true] {
                let memory: Arc<dyn Backing> = Arc::new(MemoryBacking::new(8 << 20, 4096).unwrap());
                Pool::format(&*memory, 64 << 10).await.unwrap();
                let pool = Pool::open(Arc::clone(&memory)).await.unwrap();
                pool.create("a", 1 << 20).await.unwrap();
                let volume: Arc<dyn Backing> = Arc::new(pool.volume("a").unwrap());
                let data = Buffer::copy_from(&[7; 4096]);
                volume.attach().write(0, data.into()).await.unwrap();
                let namespace = Arc::new(Namespace::new(Nsid(1), [1; 16], volume, false));
                let mapped =
                    async || Pool::open(Arc::clone(&memory)).await.unwrap().list()[0].mapped;
                assert_eq!(mapped().await, 0, "no flush has come yet");
                let closings = Arc::<Closings>::default();
                let closing = closings.add("volume a".into(), &namespace, None);
                closings.leave(&closing);
                if is_end {
                    closings.flush().await.unwrap();
                } else {
                    drop(namespace);
                    while !closings.state().all.is_empty() {
                        reactor::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                assert_eq!(mapped().await, 64 << 10);
            }
        });
    }
}
