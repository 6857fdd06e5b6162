//! A batch of copies: made durable together, named, and their names made durable.
//!
//! Where one commit of the file system's journal covers everything that was done before it, it is
//! enough to write the data of the copies before they get their names: the commit that makes the
//! names durable follows, and is the only one of the batch. Elsewhere the batch syncs all files
//! together, and then all directories, for all unions that have copies in it.

use std::rc::Rc;

use rustix::io::Errno;

use super::Durability;
use super::committer::{Committer, Waiting};
use super::copies::KeptTimes;
use crate::copier::{Copier, Goal, SyncMethod, ToSync};
use crate::sys::errno_of;
use crate::tree::{Node, Pending};

/// The copies of one union in a batch that have their names.
struct Named {
    durability: Rc<Durability>,
    parents: Vec<Rc<Node>>,
    copies: Vec<Rc<Pending>>,
}

impl Committer {
    /// Makes a batch durable, gives it its names, and makes these durable.
    pub(super) async fn commit(&self, batch: Vec<Waiting>) {
        let mut live = Vec::with_capacity(batch.len());
        for waiting in batch {
            if waiting.pending.is_cancelled() {
                waiting.pending.end(Ok(()));
            } else {
                waiting.durability.forget_dirty(&waiting.node);
                live.push(waiting);
            }
        }
        let synced = make_nameable(&self.copier, &live).await;
        // Nothing waits between the renames and taking the directories: every other task that sees
        // such a name also finds its directory noted as not durable.
        let mut groups = Vec::new();
        for Named { durability, parents, copies } in name_all(live, synced) {
            match durability.take_new_names(parents) {
                Ok(names) => groups.push((durability, names, copies)),
                Err(errno) => end_all(&durability, copies, Err(errno)),
            }
        }
        let mut files = Vec::new();
        for (durability, names, _) in &mut groups {
            let method = sync_method_of(durability);
            files.extend(names.files.drain(..).map(|file| (method.clone(), file)));
        }
        let mut results = sync_by_methods(&self.copier, files, Goal::Durable).await.into_iter();
        for (durability, names, copies) in groups {
            let own: Vec<_> = results.by_ref().take(names.count()).collect();
            let result = durability.end_new_names(&names, &own);
            end_all(&durability, copies, result);
        }
    }
}

fn end_all(durability: &Durability, copies: Vec<Rc<Pending>>, result: Result<(), Errno>) {
    for pending in copies {
        durability.forget_waiting(&pending);
        pending.end(result);
    }
}

fn sync_method_of(durability: &Durability) -> SyncMethod {
    durability
        .tree
        .upper()
        .map_or(SyncMethod::Each { device: 0 }, |upper| upper.sync_method.clone())
}

/// Gives copies their names. Those that cannot have one are ended.
fn name_all(batch: Vec<Waiting>, synced: Vec<Result<(), Errno>>) -> Vec<Named> {
    let mut named: Vec<Named> = Vec::new();
    let mut times = KeptTimes::default();
    for (waiting, result) in batch.into_iter().zip(synced) {
        let Waiting { durability, node, pending, .. } = &waiting;
        let published = result.and_then(|()| durability.publish(node, pending, &mut times));
        match published {
            Ok(parents) => note_named(&mut named, waiting, parents),
            Err(errno) => {
                tracing::error!(%errno, "a copied-up file could not be made durable");
                durability.tree.note_error("making a copy durable", errno);
                let waits = node.pending().is_some_and(|it| Rc::ptr_eq(&it, pending));
                if result.is_ok() && waits {
                    durability.defer(Rc::clone(pending), Rc::clone(node), errno);
                } else {
                    durability.keep_error(errno);
                    durability.forget_waiting(pending);
                    pending.end(Err(errno));
                }
            }
        }
    }
    times.restore();
    named
}

fn note_named(named: &mut Vec<Named>, waiting: Waiting, parents: Vec<Rc<Node>>) {
    let Waiting { pending, durability, .. } = waiting;
    let at = named.iter().position(|group| Rc::ptr_eq(&group.durability, &durability));
    let at = at.unwrap_or_else(|| {
        named.push(Named { durability, parents: Vec::new(), copies: Vec::new() });
        named.len() - 1
    });
    let group = &mut named[at];
    group.copies.push(pending);
    for parent in parents {
        if !group.parents.iter().any(|known| Rc::ptr_eq(known, &parent)) {
            group.parents.push(parent);
        }
    }
}

/// Ensures that the name of a copy can never be durable without its data.
async fn make_nameable(copier: &Copier, batch: &[Waiting]) -> Vec<Result<(), Errno>> {
    let mut results = vec![Ok(()); batch.len()];
    let mut whole: Vec<(u64, Result<(), Errno>)> = Vec::new();
    let (mut indexes, mut files) = (Vec::new(), Vec::new());
    for (index, Waiting { durability, pending, .. }) in batch.iter().enumerate() {
        if !durability.tree.options().sync_whole_file_system {
            indexes.push(index);
            files.push((sync_method_of(durability), ToSync::File(pending.backing().file.clone())));
            continue;
        }
        let device = durability.tree.upper().map_or(0, |upper| upper.device);
        let known = whole.iter().find(|(known, _)| *known == device).map(|(_, result)| *result);
        results[index] = if let Some(result) = known {
            result
        } else {
            let result = sync_file_system(durability).await;
            whole.push((device, result));
            result
        };
    }
    let synced = sync_by_methods(copier, files, Goal::Nameable).await;
    for (index, result) in indexes.into_iter().zip(synced) {
        results[index] = result;
    }
    results
}

/// Syncs files that may lie on several file systems. Returns in their order.
async fn sync_by_methods(
    copier: &Copier,
    files: Vec<(SyncMethod, ToSync)>,
    goal: Goal,
) -> Vec<Result<(), Errno>> {
    let mut results = vec![Err(Errno::IO); files.len()];
    let mut groups: Vec<(SyncMethod, Vec<usize>, Vec<ToSync>)> = Vec::new();
    for (index, (method, file)) in files.into_iter().enumerate() {
        let known = groups.iter().position(|(known, ..)| known.is_same(&method));
        let at = known.unwrap_or_else(|| {
            groups.push((method, Vec::new(), Vec::new()));
            groups.len() - 1
        });
        groups[at].1.push(index);
        groups[at].2.push(file);
    }
    for (method, indexes, files) in groups {
        for (index, result) in indexes.into_iter().zip(copier.sync(files, method, goal).await) {
            results[index] = result;
        }
    }
    results
}

/// `syncfs(2)` on a thread of its own, since it may take seconds.
async fn sync_file_system(durability: &Durability) -> Result<(), Errno> {
    let root = durability.tree.upper()?.root.try_clone().map_err(errno_of)?;
    let config = reactor::Config { entries: 8, ..reactor::Config::default() };
    let sync = move || async move { rustix::fs::syncfs(root) };
    let thread = reactor::thread::spawn("syncfs", &config, sync).map_err(errno_of)?;
    thread.await.unwrap_or(Err(Errno::IO))
}
