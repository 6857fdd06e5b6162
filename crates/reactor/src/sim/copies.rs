//! Copies that a middlebox keeps of connections and may deliver again, over connections of its own.

use super::network::stream;
use super::streams::{Payload, Piece};
use super::world::{Event, Object, World};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Most connections with a copy: the latest.
const COPIES_MAX: usize = 48;
/// Most bytes in a copy: the first ones.
const COPY_BYTES_MAX: usize = 1 << 20;

/// The bytes that one node sent over a connection that it has made.
#[derive(Debug)]
struct Copy {
    /// The sender's end.
    stream: u64,
    nodes: (u32, u32),
    address: SocketAddr,
    pieces: Vec<Piece>,
    bytes: usize,
}

/// All copies, in the order of their connections.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    kept: VecDeque<Copy>,
    /// Connections over which a copy was delivered: the target node, and the end without a program.
    delivered: Vec<(u32, u64)>,
}

impl Copies {
    /// Starts the copy of a connection that the first of two nodes has made to an address of the
    /// second.
    pub(crate) fn begin(&mut self, stream: u64, nodes: (u32, u32), address: SocketAddr) {
        if self.kept.len() == COPIES_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Copy { stream, nodes, address, pieces: Vec::new(), bytes: 0 });
    }

    /// Adds bytes that are sent over a connection.
    pub(crate) fn keep(&mut self, stream: u64, piece: &Piece) {
        let Some(copy) = self.kept.iter_mut().rfind(|copy| copy.stream == stream) else { return };
        // Bytes behind a gap would be in the wrong place of the stream.
        if copy.bytes < COPY_BYTES_MAX {
            copy.bytes += piece.range.len();
            copy.pieces.push(piece.clone());
        }
    }
}

impl World {
    /// Delivers again the bytes that one node has sent to another over a connection, open or not.
    /// It uses a new connection without a reader of the answers. Returns whether there were bytes
    /// to deliver.
    pub(crate) fn duplicate(&mut self, nodes: (u32, u32), choice: u64, ends: bool) -> bool {
        let Some(copies) = &self.copies else { return false };
        let fits = |copy: &&Copy| copy.nodes == nodes && copy.bytes > 0;
        let count = copies.kept.iter().filter(fits).count() as u64;
        if count == 0 {
            return false;
        }
        let chosen = copies.kept.iter().filter(fits).nth((choice % count) as usize);
        let Some((address, pieces)) = chosen.map(|copy| (copy.address, copy.pieces.clone())) else {
            return false;
        };
        let (node, target) = nodes;
        let Some(&listener) = self.listeners.get(&(target, address.port())) else { return false };
        let local = SocketAddr::new(Self::address(node), self.free_port(node));
        // An end without a program.
        let own = self.add(Object::Stream(Box::new(stream(node, target, local, 0))));
        let accepted = self.add(Object::Stream(Box::new(stream(target, node, address, own))));
        if let Some(Object::Stream(stream)) = self.objects.get_mut(&own) {
            stream.peer = accepted;
        }
        if let Some(copies) = &mut self.copies {
            copies.delivered.push((target, own));
        }
        if let Some(Object::Listener(listener)) = self.objects.get_mut(&listener) {
            listener.queue.push_back((accepted, local));
        }
        self.plan(1, Event::Pump(listener));
        for piece in pieces {
            self.send_piece(own, Payload::Data(piece));
        }
        if ends {
            self.send_piece(own, Payload::End);
        }
        true
    }

    /// Returns the largest number of bytes with which a node has answered a duplicated connection.
    pub(crate) fn duplicates_answered(&self, target: u32) -> usize {
        let delivered = self.copies.iter().flat_map(|copies| &copies.delivered);
        let to_target = delivered.filter(|(node, _)| *node == target);
        let answered = to_target.filter_map(|(_, own)| match self.objects.get(own) {
            Some(Object::Stream(stream)) => Some(stream.inbox.len()),
            _ => None,
        });
        answered.max().unwrap_or(0)
    }
}
