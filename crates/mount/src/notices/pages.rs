//! Files whose pages the kernel has to drop.
//!
//! Dropping pages waits for those that are being read or written, for seconds if a device does not
//! answer.
//!
//! A request learns when its drop begins, because a server may get no processor for long. What
//! stands in its way before that, it learns at once: an earlier drop of the same file, or other
//! files that occupy all servers.

use super::servers::{Jobs, Obstacle, Server, servers};
use client::Dropping;
use fuse::{FuseError, NodeId};
use reactor::mailbox::Sender;

/// The sending end of the queue.
#[derive(Debug)]
pub(super) struct PageSender(Jobs<NodeId, Sender<Dropping>>);

impl PageSender {
    /// Queues a file. `done` reports how far the drop of its pages is. Returns whether there was
    /// room.
    pub(super) fn send(&self, node: NodeId, done: Option<Sender<Dropping>>) -> bool {
        self.0.send(node, done, |done, obstacle| {
            let dropping = match obstacle {
                Obstacle::Subject => Dropping::Begun,
                Obstacle::Servers => Dropping::Hindered,
            };
            report(done, dropping);
        })
    }
}

/// A server of the files whose pages the kernel has to drop.
#[derive(Debug)]
pub struct PageQueue(Server<NodeId, Sender<Dropping>>);

/// Makes the queue, with its first server.
pub(super) fn pages() -> (PageSender, PageQueue) {
    let (sender, first) = servers();
    (PageSender(sender), PageQueue(first))
}

impl PageQueue {
    /// Makes the kernel drop the pages of the files in the queue, and reports each. Calls
    /// `start_another` with a further server when no other one is idle. Returns when the sender is
    /// gone.
    pub async fn serve(
        self,
        drop_pages: impl AsyncFn(NodeId) -> Result<(), FuseError>,
        start_another: impl Fn(PageQueue),
    ) {
        let work = async |node: NodeId, mut done: Vec<Sender<Dropping>>| {
            for done in &done {
                report(done, Dropping::Begun);
            }
            if reactor::mutant!("dropped-too-early") {
                done.drain(..).for_each(|done| report(&done, Dropping::Done));
            }
            // ENOENT: the kernel does not know the inode (any more).
            if let Err(error) = drop_pages(node).await {
                tracing::debug!(node = node.0, %error, "kernel not notified of a change");
            }
            move || done.iter().for_each(|done| report(done, Dropping::Done))
        };
        self.0.serve(work, |another| start_another(PageQueue(another))).await;
    }
}

/// Reports how far a drop is, unless its caller has gone.
fn report(done: &Sender<Dropping>, dropping: Dropping) {
    let _ = done.try_send(dropping);
}

#[cfg(test)]
mod tests {
    use super::super::NOTICES_MAX;
    use super::super::servers::SERVERS_MAX;
    use super::*;
    use reactor::mailbox::{TryRecvError, channel};
    use reactor::time::sleep;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::time::Duration;

    const MOMENT: Duration = Duration::from_millis(1);
    /// Files with larger numbers have locked pages.
    const LOCKED_FROM: u64 = 100;

    /// A kernel whose locked files wait until they are unlocked.
    #[derive(Default)]
    struct Kernel {
        is_unlocked: Cell<bool>,
        dropped: RefCell<Vec<u64>>,
        servers: Cell<usize>,
    }

    fn serve(kernel: Rc<Kernel>, pages: PageQueue) {
        kernel.servers.set(kernel.servers.get() + 1);
        drop(reactor::spawn(async move {
            let of_pages = Rc::clone(&kernel);
            let drop_pages = async move |node: NodeId| {
                while node.0 >= LOCKED_FROM && !of_pages.is_unlocked.get() {
                    sleep(MOMENT).await;
                }
                of_pages.dropped.borrow_mut().push(node.0);
                Ok(())
            };
            pages.serve(drop_pages, move |another| serve(Rc::clone(&kernel), another)).await;
        }));
    }

    fn play(scene: impl AsyncFnOnce(PageSender, Rc<Kernel>) + 'static) {
        let whole = async move {
            let (sender, first) = pages();
            let kernel = Rc::new(Kernel::default());
            serve(Rc::clone(&kernel), first);
            scene(sender, kernel).await;
        };
        reactor::sim::Simulation::new(1).run(whole).unwrap();
    }

    /// Goal: files with locked pages delay no other file, and the number of servers is bounded.
    #[test]
    fn locked_pages_delay_no_other_file() {
        const LOCKED: u64 = 8;
        const MANY: u64 = 2 * SERVERS_MAX as u64;
        play(async |sender, kernel| {
            assert!((0..LOCKED).all(|file| sender.send(NodeId(LOCKED_FROM + file), None)));
            let (done, mut dropped) = channel(Dropping::REPORTS_MAX);
            assert!(sender.send(NodeId(5), Some(done)));
            sleep(MOMENT).await;
            assert_eq!(dropped.try_recv(), Ok(Dropping::Begun));
            assert_eq!(dropped.try_recv(), Ok(Dropping::Done), "it waits for other files");
            assert_eq!(*kernel.dropped.borrow(), [5]);
            assert!((0..MANY).all(|file| sender.send(NodeId(LOCKED_FROM + file), None)));
            sleep(MOMENT).await;
            assert_eq!(kernel.servers.get(), SERVERS_MAX);
            let (done, mut dropped) = channel(Dropping::REPORTS_MAX);
            assert!(sender.send(NodeId(5), Some(done)));
            assert_eq!(dropped.try_recv(), Ok(Dropping::Hindered), "all servers wait");
            kernel.is_unlocked.set(true);
            sleep(MOMENT * 4).await;
            assert!((0..MANY).all(|file| kernel.dropped.borrow().contains(&(LOCKED_FROM + file))));
        });
    }

    /// Goal: one file takes one server, and what is queued for it meanwhile is done after it, once.
    #[test]
    fn a_file_takes_one_server() {
        play(async |sender, kernel| {
            let file = NodeId(LOCKED_FROM);
            assert!(sender.send(file, None));
            sleep(MOMENT).await;
            let (done, mut dropped) = channel(2 * Dropping::REPORTS_MAX);
            assert!((0..2).all(|_| sender.send(file, Some(done.clone()))));
            for _ in 0..2 {
                assert_eq!(dropped.try_recv(), Ok(Dropping::Begun), "the first drop has begun");
            }
            sleep(MOMENT).await;
            assert!(kernel.servers.get() <= 2, "one waits for the file, one is idle");
            assert!(dropped.try_recv().is_err(), "the pages are not dropped yet");
            kernel.is_unlocked.set(true);
            for dropping in [Dropping::Begun, Dropping::Begun, Dropping::Done, Dropping::Done] {
                assert_eq!(dropped.recv().await, Some(dropping));
            }
            assert_eq!(*kernel.dropped.borrow(), [file.0, file.0]);
        });
    }

    /// Goal: the queue is bounded, also for one file, and refused requests close their channel.
    #[test]
    fn the_queue_is_bounded() {
        let (sender, _servers) = pages();
        let (done, mut dropped) = channel(1);
        assert!((0..NOTICES_MAX).all(|_| sender.send(NodeId(1), Some(done.clone()))));
        assert!(!sender.send(NodeId(1), Some(done)));
        assert!(sender.send(NodeId(1), None), "it is queued already");
        assert!(!sender.send(NodeId(2), None));
        assert_eq!(dropped.try_recv(), Err(TryRecvError::Empty));
    }

    /// Goal: without a server no report is waited for.
    #[test]
    fn without_servers_channels_close() {
        let (sender, server) = pages();
        let (done, mut dropped) = channel(1);
        assert!(sender.send(NodeId(1), Some(done.clone())));
        drop(server);
        assert!(!sender.send(NodeId(1), Some(done)));
        assert_eq!(dropped.try_recv(), Err(TryRecvError::Closed));
    }
}
