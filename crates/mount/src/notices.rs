//! Telling the kernel of changes that others made: a queue between the client and the kernel.
//!
//! A notification may wait for requests that this process has yet to answer, so the task that serves
//! requests only queues it. Another thread takes it from the queue.

use client::Change;
use fuse::{FuseError, NodeId};
use ring::mailbox;

/// Changes that may wait to be told to the kernel. More are dropped: the kernel then keeps pages of
/// a file that is open until it is opened anew, which is what mode `close` promises anyway.
const NOTICES_MAX: usize = 65536;

/// A file whose pages the kernel is to drop, and where to send that it has.
type Notice = (NodeId, Option<mailbox::Sender<()>>);

/// The end of the queue into which changes go.
#[derive(Clone, Debug)]
pub struct Notices(mailbox::Sender<Notice>);

/// The end of the queue from which the kernel is told.
#[derive(Debug)]
pub struct NoticeQueue(mailbox::Receiver<Notice>);

/// Makes a queue.
pub fn notices() -> (Notices, NoticeQueue) {
    let (sender, receiver) = mailbox::channel(NOTICES_MAX);
    (Notices(sender), NoticeQueue(receiver))
}

impl Notices {
    /// Returns what the client calls with each change ([`client::ClientConfig::changes`]).
    pub fn changes(&self) -> Box<dyn Fn(Change)> {
        let notices = self.0.clone();
        Box::new(move |change| {
            let (inode, done) = match change {
                Change::Inode(_) if ring::mutant!("kernel-uninformed") => return,
                Change::Inode(inode) => (inode, None),
                Change::Pages(inode, done) => (inode, Some(done)),
            };
            if notices.try_send((NodeId(inode.0), done)).is_err() {
                tracing::debug!(inode = inode.0, "too many changes for the kernel to be told");
            }
        })
    }
}

impl NoticeQueue {
    /// Has the kernel drop what it caches of each inode in the queue, one after the other, and then sends
    /// that it has. Returns when nothing is left that could queue a change.
    pub async fn serve(mut self, drop_pages: impl AsyncFn(NodeId) -> Result<(), FuseError>) {
        while let Some((node, mut done)) = self.0.recv().await {
            if ring::mutant!("dropped-too-early")
                && let Some(done) = done.take()
            {
                let _ = done.try_send(());
            }
            // ENOENT: the kernel does not know the inode (any more).
            if let Err(error) = drop_pages(node).await {
                tracing::debug!(node = node.0, %error, "the kernel was not told of a change");
            }
            if let Some(done) = done {
                let _ = done.try_send(());
            }
        }
    }
}
