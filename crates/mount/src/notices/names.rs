//! Names that the kernel has to drop.
//!
//! To drop a name the kernel takes the lock of its directory. A change of that directory by this mount
//! holds the lock until the service has answered.

use super::servers::{Jobs, Server, servers};
use client::LentName;
use fuse::{FuseError, Name, NodeId};
use protocol::InodeId;
use reactor::mailbox::Sender;

/// All numbers of a directory, names in it, and the channel that reports when they are dropped.
type Job = (Vec<NodeId>, Vec<LentName>, Sender<()>);

/// The sending end of the queue.
#[derive(Debug)]
pub(super) struct NameSender(Jobs<InodeId, Job>);

impl NameSender {
    /// Queues names of a directory. Returns whether there was room.
    pub(super) fn send(&self, directory: InodeId, job: Job) -> bool {
        self.0.send(directory, Some(job), |_, _| {})
    }
}

/// A server of the names that the kernel has to drop.
#[derive(Debug)]
pub struct NameQueue(Server<InodeId, Job>);

/// Makes the queue, with its first server.
pub(super) fn names() -> (NameSender, NameQueue) {
    let (sender, first) = servers();
    (NameSender(sender), NameQueue(first))
}

impl NameQueue {
    /// Makes the kernel drop names, given by their directory; the flag says that the kernel need
    /// only end their validity. Calls `start_another` with a further server when no other one is
    /// idle. Returns when the sender is gone.
    pub async fn serve(
        self,
        drop_name: impl AsyncFn(NodeId, &Name, bool) -> Result<(), FuseError>,
        start_another: impl Fn(NameQueue),
    ) {
        let work = async |_: InodeId, jobs: Vec<Job>| {
            for (nodes, names, done) in jobs {
                if drop_all(&drop_name, &nodes, &names).await {
                    let _ = done.try_send(());
                }
            }
            || {}
        };
        self.0.serve(work, |another| start_another(NameQueue(another))).await;
    }
}

/// Makes the kernel drop names of a directory. Returns whether it has dropped all.
async fn drop_all(
    drop_name: &impl AsyncFn(NodeId, &Name, bool) -> Result<(), FuseError>,
    nodes: &[NodeId],
    names: &[LentName],
) -> bool {
    let mut is_dropped = true;
    for lent in names {
        let Some(name) = Name::new(&lent.name) else { continue };
        for node in nodes {
            if let Err(error) = drop_name(*node, &name, lent.expires_only).await {
                tracing::debug!(node = node.0, %error, "kernel not notified of a name");
                is_dropped = false;
            }
        }
    }
    is_dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::mailbox::channel;
    use reactor::time::sleep;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    const MOMENT: Duration = Duration::from_millis(1);
    const LOCKED: NodeId = NodeId(100);

    /// Serves the queue for a kernel in which one directory is locked.
    fn serve(is_unlocked: Rc<Cell<bool>>, queue: NameQueue) {
        drop(reactor::spawn(async move {
            let unlocked = Rc::clone(&is_unlocked);
            let drop_name = async move |node: NodeId, _: &Name, _: bool| {
                while node == LOCKED && !unlocked.get() {
                    sleep(MOMENT).await;
                }
                Ok(())
            };
            queue.serve(drop_name, move |another| serve(Rc::clone(&is_unlocked), another)).await;
        }));
    }

    /// Goal: a locked directory delays no names of others, and its own are dropped later.
    #[test]
    fn a_locked_directory_delays_no_other() {
        let whole = async {
            let (sender, first) = names();
            let is_unlocked = Rc::new(Cell::new(false));
            serve(Rc::clone(&is_unlocked), first);
            let send = |node: NodeId| {
                let (done, dropped) = channel(1);
                let name = LentName { name: b"a".as_slice().into(), expires_only: false };
                assert!(sender.send(InodeId(node.0), (vec![node], vec![name], done)));
                dropped
            };
            let mut waits = [send(LOCKED), send(LOCKED)];
            sleep(MOMENT).await;
            let mut dropped = send(NodeId(5));
            sleep(MOMENT).await;
            assert!(dropped.try_recv().is_ok(), "it waits for another directory");
            assert!(waits.iter_mut().all(|wait| wait.try_recv().is_err()));
            is_unlocked.set(true);
            for mut wait in waits {
                assert!(wait.recv().await.is_some());
            }
        };
        reactor::sim::Simulation::new(1).run(whole).unwrap();
    }
}
