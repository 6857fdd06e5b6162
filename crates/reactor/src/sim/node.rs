//! The faults and controls that a test applies to nodes and links.

use super::World;
use super::disk::gather;
use super::moment::{Seen, Watch};
use super::world::Object;
use crate::context::Context;
use crate::executor::{JoinHandle, spawn_on};
use crate::local::oneshot;
use crate::operation::Operation;
use std::cell::RefMut;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// The times of a disk's operations, from the least to the most.
#[derive(Clone, Copy, Debug)]
pub struct DiskPace {
    /// A read.
    pub read: (Duration, Duration),
    /// A write.
    pub write: (Duration, Duration),
    /// A flush.
    pub sync: (Duration, Duration),
}

/// The reason why a disk refuses an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// It cannot execute it: EIO.
    Broken,
    /// It has no space, as a thin volume or a sparse file may have: ENOSPC.
    Full,
}

impl DiskError {
    pub(crate) fn code(self) -> i32 {
        match self {
            DiskError::Broken => -libc::EIO,
            DiskError::Full => -libc::ENOSPC,
        }
    }
}

/// The errors with which a disk refuses operations, which then have no effect (`None`: it executes
/// them), and how reliably it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFault {
    /// Reads.
    pub read: Option<DiskError>,
    /// Writes.
    pub write: Option<DiskError>,
    /// Flushes. The data that they would have flushed stays unflushed.
    pub sync: Option<DiskError>,
    /// After a failed flush, later flushes do not write its data either: the data can be read until
    /// the machine loses power, and then it is gone.
    pub forgets: bool,
    /// Number of reads, out of a hundred, in which one bit flips on the way.
    pub flips_percent: u8,
}

/// An event for which [`Network::moment`] waits.
#[derive(Clone, Copy, Debug)]
pub enum Moment<'a> {
    /// A node's disk begins to read.
    Read(&'a Node),
    /// A node's disk begins to write.
    Write(&'a Node),
    /// A node's disk begins to flush.
    Flush(&'a Node),
    /// A node sends another a piece of a stream.
    Send {
        /// The sender.
        from: &'a Node,
        /// The receiver.
        to: &'a Node,
        /// Least number of bytes of the piece.
        bytes_min: usize,
    },
}

/// A simulated machine. Clones refer to the same one.
#[derive(Clone)]
pub struct Node {
    context: Rc<Context>,
    id: u32,
}

impl Node {
    pub(super) fn new(context: Rc<Context>, id: u32) -> Self {
        Self { context, id }
    }

    fn world(&self) -> RefMut<'_, World> {
        self.context.sim().expect("made by a simulation").world.borrow_mut()
    }

    /// Returns its name.
    pub fn name(&self) -> String {
        self.world().nodes[self.id as usize].name.clone()
    }

    /// Returns its address.
    pub fn address(&self) -> IpAddr {
        World::address(self.id)
    }

    /// Runs a future as a task of the node; tasks that it spawns belong to the node too. A node
    /// without power is switched on.
    ///
    /// # Panics
    /// Outside of [`Simulation::run`](super::Simulation::run).
    pub fn spawn<F: Future + 'static>(&self, future: F) -> JoinHandle<F::Output> {
        let mut world = self.world();
        let node = &mut world.nodes[self.id as usize];
        if !std::mem::replace(&mut node.has_power, true) {
            world.release_held();
        }
        drop(world);
        spawn_on(Some(self.id), future)
    }

    /// Kills the node's program, as `kill -9` does: its tasks are dropped, its sockets close, its
    /// files keep the written data.
    ///
    /// # Panics
    /// If a task of the node itself calls it.
    pub fn kill(&self) {
        assert_ne!(self.context.executor.node.get(), self.id, "a node cannot kill itself");
        self.world().note(6, u64::from(self.id), 0);
        self.context.executor.drop_tasks(|node| node == self.id);
        self.world().close_all(self.id);
        self.context.executor.set_paused(self.id, false);
    }

    /// Takes the power away: as [`kill`](Self::kill), but peers get no notice, and of writes that
    /// no flush covers each unit survives or not by chance.
    ///
    /// # Panics
    /// If a task of the node itself calls it.
    pub fn lose_power(&self) {
        let in_flight = self.writes_in_flight();
        {
            let mut world = self.world();
            world.note(7, u64::from(self.id), 0);
            world.lose_unflushed(self.id, in_flight);
            let node = &mut world.nodes[self.id as usize];
            node.epoch += 1;
            node.has_power = false;
            // Without a notice to peers: no stream is left that could send its end.
            world.objects.retain(|_, object| match object {
                Object::Stream(stream) => stream.node != self.id,
                _ => true,
            });
        }
        self.kill();
    }

    fn writes_in_flight(&self) -> Vec<(u64, u64, Vec<u8>)> {
        let operations = self.world().disk_operations();
        let mut slots = self.context.slots.borrow_mut();
        let mut writes = Vec::new();
        for (key, object) in operations {
            if !self.world().is_of(object, self.id) {
                continue;
            }
            match &slots.get(key).operation {
                Some(Operation::Write { chunks, offset, skip }) => {
                    writes.push((object, offset + *skip as u64, gather(chunks, *skip)));
                }
                Some(Operation::WriteOne { chunk, offset, skip }) => {
                    let bytes = gather(std::slice::from_ref(chunk), *skip);
                    writes.push((object, offset + *skip as u64, bytes));
                }
                _ => {}
            }
        }
        writes
    }

    /// Moves the node's wall clock forward or back by a number of seconds.
    pub fn step_wall_clock(&self, seconds: i64) {
        let mut world = self.world();
        world.note(18, u64::from(self.id), seconds.cast_unsigned());
        world.nodes[self.id as usize].wall_offset_ns += seconds * 1_000_000_000;
    }

    /// Stops the node's tasks, as SIGSTOP does: bytes still arrive, disk operations end, and time
    /// passes.
    pub fn pause(&self) {
        self.context.executor.set_paused(self.id, true);
    }

    /// Suspends the machine: no task runs, no data reaches it or leaves it, and its disk stops. The
    /// clock that programs read continues. [`wake`](Self::wake) ends it.
    pub fn suspend(&self) {
        self.pause();
        let mut world = self.world();
        world.note(20, u64::from(self.id), 1);
        world.set_suspended(self.id, true);
    }

    /// Wakes a suspended machine: data that was sent to it arrives.
    pub fn wake(&self) {
        let mut world = self.world();
        world.note(20, u64::from(self.id), 0);
        world.set_suspended(self.id, false);
        drop(world);
        self.resume();
    }

    /// Sets the errors of the node's disk for operations that end from now on.
    pub fn set_disk_fault(&self, fault: DiskFault) {
        let mut world = self.world();
        world.note(21, u64::from(self.id), u64::from(fault != DiskFault::default()));
        world.nodes[self.id as usize].disk_fault = fault;
    }

    /// Sets the times of the node's disk from now on; `None` means as configured.
    pub fn set_disk_pace(&self, pace: Option<DiskPace>) {
        let mut world = self.world();
        world.note(15, u64::from(self.id), u64::from(pace.is_some()));
        world.nodes[self.id as usize].pace = pace;
    }

    /// Returns how many operations on the node's files are under way, including those of a killed
    /// program: its files stay open until they have ended.
    pub fn disk_operations(&self) -> usize {
        let world = self.world();
        let operations = world.disk_operations();
        operations.iter().filter(|(_, object)| world.is_of(*object, self.id)).count()
    }

    /// Returns how many pages (4096 bytes) of one of its files were written more than `times`
    /// times.
    pub fn pages_written(&self, path: &Path, times: u32) -> usize {
        self.world().pages_written(self.id, path, times)
    }

    /// Resumes a paused node.
    pub fn resume(&self) {
        self.context.executor.set_paused(self.id, false);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The links between nodes. Clones refer to the same network.
#[derive(Clone)]
pub struct Network {
    context: Rc<Context>,
}

impl Network {
    pub(super) fn new(context: Rc<Context>) -> Self {
        Self { context }
    }

    fn world(&self) -> RefMut<'_, World> {
        self.context.sim().expect("made by a simulation").world.borrow_mut()
    }

    /// Cuts the link between two nodes: data that is sent waits, and new connections fail.
    pub fn cut(&self, a: &Node, b: &Node) {
        let mut world = self.world();
        world.note(8, u64::from(a.id), u64::from(b.id));
        world.cut.extend([(a.id, b.id), (b.id, a.id)]);
    }

    /// Cuts one direction of a link: data that one node sends to another waits, and no new
    /// connection is made between them; data in the other direction arrives.
    pub fn cut_one_way(&self, from: &Node, to: &Node) {
        let mut world = self.world();
        world.note(22, u64::from(from.id), u64::from(to.id));
        world.cut.insert((from.id, to.id));
    }

    /// Sets the latency of one direction between two nodes from now on; `None` means as configured.
    pub fn set_latency(&self, a: &Node, b: &Node, latency: Option<(Duration, Duration)>) {
        let mut world = self.world();
        world.note(23, u64::from(a.id), u64::from(b.id));
        let link = (a.id.min(b.id), a.id.max(b.id));
        match latency {
            Some(latency) => world.slow_links.insert(link, latency),
            None => world.slow_links.remove(&link),
        };
    }

    /// Cuts a node off from all others.
    pub fn isolate(&self, node: &Node) {
        let mut world = self.world();
        world.note(9, u64::from(node.id), 0);
        let others = (0..world.nodes.len() as u32).filter(|&other| other != node.id);
        let links: Vec<_> = others.flat_map(|other| [(node.id, other), (other, node.id)]).collect();
        world.cut.extend(links);
    }

    /// Heals the link between two nodes: data that was held arrives.
    pub fn heal(&self, a: &Node, b: &Node) {
        let mut world = self.world();
        world.note(10, u64::from(a.id), u64::from(b.id));
        world.cut.remove(&(a.id, b.id));
        world.cut.remove(&(b.id, a.id));
        world.release_held();
    }

    /// Heals all links, also slow ones, and delivers data that [`hold_back`](Self::hold_back) held.
    pub fn heal_all(&self) {
        let mut world = self.world();
        world.note(11, 0, 0);
        world.cut.clear();
        world.slow_links.clear();
        world.hold_back(None, false);
    }

    /// Holds back, in both directions, the further data of the present connections between two
    /// nodes, as a slow path does; new connections work. [`let_go`](Self::let_go) delivers it,
    /// whether or not the sender has closed its end meanwhile.
    pub fn hold_back(&self, a: &Node, b: &Node) {
        let mut world = self.world();
        world.note(13, u64::from(a.id), u64::from(b.id));
        world.hold_back(Some((a.id, b.id)), true);
    }

    /// Waits for the next piece of at least `bytes_min` bytes from one node to another, and holds
    /// back the further data of its connection, as [`hold_back`](Self::hold_back) does for all.
    pub async fn hold_back_sender(&self, from: &Node, to: &Node, bytes_min: usize) {
        if let Some(Seen::Send { stream, .. }) =
            self.seen(Moment::Send { from, to, bytes_min }).await
        {
            let mut world = self.world();
            world.note(17, u64::from(from.id), u64::from(to.id));
            world.hold_back_stream(stream);
        }
    }

    /// Delivers data that was held back between two nodes.
    pub fn let_go(&self, a: &Node, b: &Node) {
        let mut world = self.world();
        world.note(14, u64::from(a.id), u64::from(b.id));
        world.hold_back(Some((a.id, b.id)), false);
    }

    /// Makes a middlebox keep, from now on, the data that connections carry to their accepting
    /// side: of the latest 48 connections, the first MiB each.
    pub fn keep_copies(&self) {
        self.world().copies.get_or_insert_default();
    }

    /// Delivers again the data that a node has sent to another over one of the connections that it
    /// has made, even one that has ended: from the first byte to the last one kept, over a new
    /// connection without a reader of the answers. The connection ends after the last byte if
    /// `ends`. Returns whether there was data to deliver ([`keep_copies`](Self::keep_copies)).
    pub fn duplicate(&self, from: &Node, to: &Node, choice: u64, ends: bool) -> bool {
        let mut world = self.world();
        world.note(24, u64::from(from.id), u64::from(to.id));
        world.duplicate((from.id, to.id), choice, ends)
    }

    /// Returns the largest number of bytes with which a node has answered a duplicated connection.
    pub fn duplicates_answered(&self, to: &Node) -> usize {
        self.world().duplicates_answered(to.id)
    }

    /// Completes at the next such event, before time advances, so that the waiting task can
    /// interfere at that moment.
    pub async fn moment(&self, moment: Moment<'_>) {
        self.seen(moment).await;
    }

    async fn seen(&self, moment: Moment<'_>) -> Option<Seen> {
        let (seen, bytes_min) = match moment {
            Moment::Read(node) => (Seen::Read(node.id), 0),
            Moment::Write(node) => (Seen::Write(node.id), 0),
            Moment::Flush(node) => (Seen::Flush(node.id), 0),
            Moment::Send { from, to, bytes_min } => {
                (Seen::Send { from: from.id, to: to.id, bytes: bytes_min, stream: 0 }, bytes_min)
            }
        };
        let (sender, receiver) = oneshot();
        self.world().watches.push(Watch { seen, bytes_min, sender });
        receiver.await.ok()
    }

    /// Breaks all connections between two nodes at once, as a reset does.
    pub fn reset(&self, a: &Node, b: &Node) {
        let mut world = self.world();
        world.note(12, u64::from(a.id), u64::from(b.id));
        world.reset_between(a.id, b.id);
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}
