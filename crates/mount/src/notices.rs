//! Notifications of the kernel about changes that others made: queues between client and kernel.
//!
//! A notification may wait for requests that this process has yet to answer, so the task that
//! serves requests only queues it. Other threads take notifications from the queues. There is one
//! queue for each thing that a notification may wait for:
//!
//! | queue | what the kernel drops | what that may wait for |
//! | --- | --- | --- |
//! | [`PageQueue`], with several threads | pages of a file | reads and writes of them |
//! | [`NameQueue`], likewise | names of a directory | the directory's lock, held by each change of it |
//! | [`PromptQueue`] | attributes; all names at once | nothing of its own |
//!
//! Attributes of directories need no queue: each create and removal drops those of its directory.

mod names;
mod pages;
mod servers;

pub use names::NameQueue;
pub use pages::PageQueue;

use crate::nodes::Numbers;
use client::Change;
use fuse::{FuseError, NodeId, Notifier};
use names::NameSender;
use pages::PageSender;
use reactor::mailbox::{Receiver, Sender, channel};
use std::sync::Arc;

/// Most changes in a queue. If there are more pages to drop, the kernel keeps those of an open file
/// until the file is opened anew, which is what mode `close` promises anyway. A sender that waits
/// for a report learns of it, because the channel of the report closes.
const NOTICES_MAX: usize = 65536;

#[derive(Debug)]
enum Prompt {
    Attributes(Vec<NodeId>, Sender<bool>),
    AllNames(Sender<bool>),
}

/// The sending ends of the queues.
#[derive(Clone, Debug)]
pub struct Notices {
    pages: Arc<PageSender>,
    names: Arc<NameSender>,
    prompt: Sender<Prompt>,
    /// Makes the kernel drop attributes of directories without a queue.
    pub(crate) at_once: Option<Notifier>,
    pub(crate) numbers: Numbers,
}

/// Attributes and names that the kernel can drop without waiting.
#[derive(Debug)]
pub struct PromptQueue(Receiver<Prompt>);

/// Makes the queues.
pub fn notices() -> (Notices, PageQueue, NameQueue, PromptQueue) {
    let (pages, of_pages) = pages::pages();
    let pages = Arc::new(pages);
    let (names, of_names) = names::names();
    let names = Arc::new(names);
    let (prompt, of_prompt) = channel(NOTICES_MAX);
    let notices = Notices { pages, names, prompt, at_once: None, numbers: Numbers::default() };
    (notices, of_pages, of_names, PromptQueue(of_prompt))
}

impl Notices {
    /// Makes the kernel drop attributes of directories at once, on the thread that serves requests.
    ///
    /// The kernel takes no lock for that. It waits for nothing but an inode that is being freed at
    /// that moment (`ilookup5`). Freeing waits for writes of the inode's pages, which that thread
    /// would have to answer. A directory has no such pages; this code does not know whether a file
    /// has.
    pub(crate) fn drop_at_once(self, notifier: Notifier) -> Notices {
        Notices { at_once: Some(notifier), ..self }
    }

    /// Returns what the client calls with each change ([`client::ClientConfig::changes`]).
    pub fn changes(&self) -> Box<dyn Fn(Change)> {
        let notices = self.clone();
        Box::new(move |change| notices.queue(change))
    }

    fn queue(&self, change: Change) {
        let numbers = |inode| self.numbers.of(inode);
        let is_queued = match change {
            Change::Inode(_) if reactor::mutant!("kernel-uninformed") => return,
            Change::Inode(inode) => self.pages.send(NodeId(inode.0), None),
            Change::Pages(inode, done) => self.pages.send(NodeId(inode.0), Some(done)),
            Change::Attributes { inode, is_directory, known } => match &self.at_once {
                Some(notifier) if is_directory => {
                    known.try_send(drop_at_once(notifier, &numbers(inode))).is_ok()
                }
                _ => self.prompt.try_send(Prompt::Attributes(numbers(inode), known)).is_ok(),
            },
            Change::Names(inode, names, done) => {
                self.names.send(inode, (numbers(inode), names, done))
            }
            Change::AllNames(done) => self.prompt.try_send(Prompt::AllNames(done)).is_ok(),
        };
        if !is_queued {
            tracing::debug!("too many changes wait for the kernel; one is dropped");
        }
    }
}

/// Makes the kernel drop the attributes of a directory. Returns whether it knows all its numbers.
fn drop_at_once(notifier: &Notifier, nodes: &[NodeId]) -> bool {
    let dropped = |node: &NodeId| {
        notifier.drop_attributes(*node).unwrap_or_else(|error| {
            tracing::debug!(node = node.0, %error, "kernel not notified");
            false
        })
    };
    nodes.iter().filter(|node| !dropped(node)).count() == 0
}

impl PromptQueue {
    /// Makes the kernel drop attributes of inodes (and sends whether it knows them), or all names
    /// of the mount at once (and sends whether it could). Returns when no sender is left.
    pub async fn serve(
        mut self,
        drop_attributes: impl AsyncFn(NodeId) -> Result<bool, FuseError>,
        drop_all_names: impl AsyncFn() -> bool,
    ) {
        while let Some(prompt) = self.0.recv().await {
            match prompt {
                Prompt::Attributes(nodes, known) => {
                    let mut all_known = true;
                    for node in nodes {
                        let answer = drop_attributes(node).await;
                        if let Err(error) = &answer {
                            tracing::debug!(node = node.0, %error, "kernel not notified");
                        }
                        all_known &= answer.unwrap_or(false);
                    }
                    let _ = known.try_send(all_known);
                }
                Prompt::AllNames(done) => {
                    let _ = done.try_send(drop_all_names().await);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::Dropping;
    use protocol::InodeId;
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    /// Goal: the queue reports dropped pages when the kernel has dropped them, not before (K3).
    #[test]
    fn dropped_pages_are_reported_when_they_are_dropped() {
        let mut simulation = reactor::sim::Simulation::new(1);
        let whole = async {
            let (notices, pages, _names, _prompt) = notices();
            let (done, answered) = channel(Dropping::REPORTS_MAX);
            let answered = RefCell::new(answered);
            let reported = || answered.borrow_mut().try_recv().ok();
            notices.changes()(Change::Pages(InodeId(5), done));
            drop(notices);
            let is_dropped = Cell::new(false);
            let drop_pages = async |node| {
                assert_eq!(node, NodeId(5));
                reactor::time::sleep(Duration::from_millis(1)).await;
                assert_eq!(reported(), Some(Dropping::Begun));
                assert_eq!(reported(), None, "the kernel has not dropped them yet");
                is_dropped.set(true);
                Ok(())
            };
            pages.serve(drop_pages, drop).await;
            assert!(is_dropped.get());
            assert_eq!(reported(), Some(Dropping::Done), "it is reported in the end");
        };
        simulation.run(whole).unwrap();
    }
}
