//! Simulated sockets: TCP as programs see it, over links with latency that can be cut.

use super::disk::gather;
use super::moment::Seen;
use super::streams::{Delivery, Inbox, Listener, Payload, Piece, Sending, Stream};
use super::world::{Event, Object, World};
use crate::chunk::{Chunk, Segment};
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Most connections that may wait to be accepted.
const BACKLOG: usize = 1024;
/// Pause between two attempts to connect, and their number: about the two minutes of Linux.
const CONNECT_PAUSE: Duration = Duration::from_secs(1);
const CONNECT_ATTEMPTS_MAX: u32 = 127;

impl World {
    /// Makes a listener on `node`, and returns it with its address.
    pub(crate) fn listen(
        &mut self,
        node: u32,
        address: SocketAddr,
    ) -> io::Result<(u64, SocketAddr)> {
        if self.node_at(node, address.ip()) != Some(node) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let port = if address.port() == 0 { self.free_port(node) } else { address.port() };
        if self.listeners.contains_key(&(node, port)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (queue, accepts) = (VecDeque::new(), VecDeque::new());
        let object = self.add(Object::Listener(Listener { node, port, queue, accepts }));
        self.listeners.insert((node, port), object);
        let ip = if address.ip().is_unspecified() { Self::address(node) } else { address.ip() };
        Ok((object, SocketAddr::new(ip, port)))
    }

    /// Makes a socket for a connection.
    pub(crate) fn socket(&mut self, node: u32) -> u64 {
        self.add(Object::Socket { node, connect: None })
    }

    pub(crate) fn local_addr(&self, object: u64) -> io::Result<SocketAddr> {
        match self.objects.get(&object) {
            Some(Object::Stream(stream)) => Ok(stream.local),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns whether data that one node sends does not reach another.
    fn is_cut(&self, from: u32, to: u32) -> bool {
        let is_off = |node: u32| {
            let node = &self.nodes[node as usize];
            !node.has_power || node.is_suspended
        };
        self.cut.contains(&(from, to)) || is_off(from) || is_off(to)
    }

    fn latency_ns(&mut self, a: u32, b: u32) -> u64 {
        let usual = if a == b { self.config.local_latency } else { self.config.latency };
        let range = self.slow_links.get(&(a.min(b), a.max(b))).copied().unwrap_or(usual);
        let mut ns = self.rng.ns(range);
        if a != b && self.rng.hits(self.config.spike_ppm) {
            ns += self.rng.ns((Duration::ZERO, self.config.spike_max));
        }
        ns
    }

    pub(crate) fn start_accept(&mut self, key: u32, object: u64) {
        match self.objects.get_mut(&object) {
            Some(Object::Listener(listener)) => {
                listener.accepts.push_back(key);
                self.plan(1, Event::Pump(object));
            }
            _ => self.fail(key, libc::EINVAL),
        }
    }

    /// Returns an accept that can end: its key, the new stream, the peer's address.
    pub(crate) fn next_accept(&mut self, object: u64) -> Option<(u32, u64, SocketAddr)> {
        let Some(Object::Listener(listener)) = self.objects.get_mut(&object) else { return None };
        let (&key, &(stream, peer)) = (listener.accepts.front()?, listener.queue.front()?);
        listener.accepts.pop_front();
        listener.queue.pop_front();
        Some((key, stream, peer))
    }

    pub(crate) fn start_connect(&mut self, key: u32, object: u64, address: SocketAddr) {
        let Some(Object::Socket { node, connect }) = self.objects.get_mut(&object) else {
            return self.fail(key, libc::EISCONN);
        };
        *connect = Some(key);
        let node = *node;
        let Some(target) = self.node_at(node, address.ip()) else {
            self.take_connect(key, object);
            return self.fail(key, libc::EHOSTUNREACH);
        };
        let delay = self.latency_ns(node, target);
        self.plan(delay, Event::Connect { key, socket: object, address, attempts: 1 });
    }

    /// Returns whether `key` still waited for its connection, and ends its wait.
    pub(crate) fn take_connect(&mut self, key: u32, object: u64) -> bool {
        match self.objects.get_mut(&object) {
            Some(Object::Socket { connect, .. }) => connect.take_if(|k| *k == key).is_some(),
            Some(Object::Stream(stream)) => stream.connecting.take_if(|k| *k == key).is_some(),
            _ => false,
        }
    }

    /// Handles the arrival of a connection request.
    pub(crate) fn connect(&mut self, key: u32, socket: u64, address: SocketAddr, attempts: u32) {
        let Some(&Object::Socket { node, connect: Some(waiting) }) = self.objects.get(&socket)
        else {
            return;
        };
        let Some(target) = self.node_at(node, address.ip()).filter(|_| waiting == key) else {
            return;
        };
        let listener = self.listeners.get(&(target, address.port())).copied();
        let room = match listener.and_then(|listener| self.objects.get(&listener)) {
            Some(Object::Listener(listener)) => listener.queue.len() < BACKLOG,
            _ => false,
        };
        let is_cut = self.is_cut(node, target) || self.is_cut(target, node);
        let must_wait = is_cut || (listener.is_some() && !room);
        match listener {
            _ if must_wait && attempts >= CONNECT_ATTEMPTS_MAX => {
                self.take_connect(key, socket);
                self.fail(key, libc::ETIMEDOUT);
            }
            _ if must_wait => {
                let attempts = attempts + 1;
                let event = Event::Connect { key, socket, address, attempts };
                self.plan(CONNECT_PAUSE.as_nanos() as u64, event);
            }
            None => {
                self.take_connect(key, socket);
                let delay = self.latency_ns(node, target);
                self.plan(delay, Event::Complete { key, code: -libc::ECONNREFUSED });
            }
            Some(listener) => self.establish(key, socket, (node, target), address, listener),
        }
    }

    fn establish(
        &mut self,
        key: u32,
        socket: u64,
        (node, target): (u32, u32),
        address: SocketAddr,
        listener: u64,
    ) {
        let ip = if address.ip().is_loopback() { address.ip() } else { Self::address(node) };
        let local = SocketAddr::new(ip, self.free_port(node));
        let accepted = self.add(Object::Stream(Box::new(stream(target, node, address, socket))));
        if let Some(copies) = &mut self.copies {
            copies.begin(socket, (node, target), address);
        }
        let mut mine = stream(node, target, local, accepted);
        mine.connecting = Some(key);
        self.objects.insert(socket, Object::Stream(Box::new(mine)));
        if let Some(Object::Listener(listener)) = self.objects.get_mut(&listener) {
            listener.queue.push_back((accepted, local));
        }
        self.plan(1, Event::Pump(listener));
        let delay = self.latency_ns(node, target);
        self.plan(delay, Event::Connected { key, socket });
    }

    pub(crate) fn start_receive(&mut self, key: u32, object: u64) {
        match self.objects.get_mut(&object) {
            Some(Object::Stream(stream)) => {
                stream.receives.push_back(key);
                self.plan(1, Event::Pump(object));
            }
            _ => self.fail(key, libc::ENOTCONN),
        }
    }

    /// Returns a receive that can end.
    pub(crate) fn next_receive(&mut self, object: u64) -> Option<u32> {
        let Some(Object::Stream(stream)) = self.objects.get_mut(&object) else { return None };
        let is_possible = !stream.inbox.is_empty() || stream.is_at_end || stream.is_reset;
        if is_possible { stream.receives.pop_front() } else { None }
    }

    /// Moves received bytes into segments. Returns the operation's code.
    pub(crate) fn receive(&mut self, object: u64, segments: &mut [Segment]) -> i32 {
        let Some(Object::Stream(stream)) = self.objects.get_mut(&object) else {
            return -libc::ENOTCONN;
        };
        if stream.is_reset {
            return -libc::ECONNRESET;
        }
        let mut done = 0;
        for segment in segments {
            done += stream.inbox.fill(segment);
        }
        if done > 0 {
            self.send_piece(object, Payload::Read(done));
        }
        done as i32
    }

    pub(crate) fn start_send(&mut self, key: u32, object: u64, chunks: &[Chunk], skip: usize) {
        let Some(Object::Stream(stream)) = self.objects.get_mut(&object) else {
            return self.fail(key, libc::ENOTCONN);
        };
        let bytes = Rc::new(gather(chunks, skip));
        stream.sends.push_back(Sending { key, bytes, done: 0 });
        self.plan(1, Event::Pump(object));
    }

    /// Takes as many bytes of waiting sends as the window has room for.
    pub(crate) fn pump_sends(&mut self, object: u64) {
        loop {
            let window = self.config.window_bytes;
            let Some(Object::Stream(stream)) = self.objects.get_mut(&object) else { return };
            let (is_reset, has_shut) = (stream.is_reset, stream.has_shut);
            let Some(sending) = stream.sends.front_mut() else { return };
            let key = sending.key;
            if is_reset || has_shut {
                stream.sends.pop_front();
                self.fail(key, if is_reset { libc::ECONNRESET } else { libc::EPIPE });
                continue;
            }
            let left = sending.bytes.len() - sending.done;
            let here = left.min(window.saturating_sub(stream.unread));
            let bytes = Rc::clone(&sending.bytes);
            let taken = sending.done..sending.done + here;
            sending.done += here;
            stream.unread += here;
            let total = sending.bytes.len();
            let is_over = sending.done == total;
            if is_over {
                stream.sends.pop_front();
                self.plan(1, Event::Complete { key, code: total as i32 });
            }
            self.send_in_pieces(object, &bytes, taken);
            if !is_over {
                return;
            }
        }
    }

    fn send_in_pieces(&mut self, object: u64, bytes: &Rc<Vec<u8>>, mut left: Range<usize>) {
        while !left.is_empty() {
            // Mostly large pieces, sometimes small ones.
            let most = self.config.piece_bytes_max.max(1) as u64;
            let most = if self.rng.hits(200_000) { most.min(64) } else { most };
            let here = left.len().min(1 + self.rng.below(most) as usize);
            let range = left.start..left.start + here;
            let piece = Piece { bytes: Rc::clone(bytes), range };
            if let Some(copies) = &mut self.copies {
                copies.keep(object, &piece);
            }
            self.send_piece(object, Payload::Data(piece));
            left.start += here;
        }
    }

    /// Sends a payload to the other end of a stream, in order.
    pub(super) fn send_piece(&mut self, source: u64, payload: Payload) {
        let Some(Object::Stream(stream)) = self.objects.get(&source) else { return };
        let (node, peer_node, target) = (stream.node, stream.peer_node, stream.peer);
        let last_arrival_ns = stream.last_arrival_ns;
        let delay = self.latency_ns(node, peer_node);
        let at_ns = (self.now_ns + delay).max(last_arrival_ns + 1);
        if let Some(Object::Stream(stream)) = self.objects.get_mut(&source) {
            stream.last_arrival_ns = at_ns;
        }
        let (source_node, target_node) = (node, peer_node);
        if let Payload::Data(piece) = &payload {
            let bytes = piece.range.len();
            self.see(Seen::Send { from: node, to: peer_node, bytes, stream: source });
        }
        let delivery = Delivery { source, source_node, target, target_node, payload };
        self.plan_at(at_ns, Event::Deliver(delivery));
    }

    /// Handles the arrival of a payload.
    pub(crate) fn deliver(&mut self, delivery: Delivery) {
        let is_cut = self.is_cut(delivery.source_node, delivery.target_node);
        self.note(4, delivery.target, u64::from(is_cut));
        let Some(Object::Stream(stream)) = self.objects.get_mut(&delivery.target) else {
            // The stream is gone: a machine with power answers with a reset.
            if !is_cut && matches!(delivery.payload, Payload::Data(_)) {
                self.answer_reset(&delivery);
            }
            return;
        };
        if is_cut || stream.is_held_back || !stream.held.is_empty() {
            stream.held.push_back(delivery);
            return;
        }
        match delivery.payload {
            Payload::Data(piece) => {
                let hash = hash(piece.as_slice());
                stream.inbox.push(piece);
                self.note(5, delivery.target, hash);
            }
            Payload::Read(n) => stream.unread = stream.unread.saturating_sub(n),
            Payload::End => stream.is_at_end = true,
            Payload::Reset => stream.is_reset = true,
        }
    }

    fn answer_reset(&mut self, to: &Delivery) {
        let delay = self.latency_ns(to.target_node, to.source_node);
        let answer = Delivery {
            source: to.target,
            source_node: to.target_node,
            target: to.source,
            target_node: to.source_node,
            payload: Payload::Reset,
        };
        self.plan(delay, Event::Deliver(answer));
    }

    pub(crate) fn shut_down(&mut self, object: u64, how: Shutdown) -> i32 {
        let Some(Object::Stream(stream)) = self.objects.get_mut(&object) else {
            return -libc::ENOTCONN;
        };
        if how != Shutdown::Write {
            stream.is_at_end = true;
        }
        if how != Shutdown::Read && !stream.has_shut {
            stream.has_shut = true;
            self.send_piece(object, Payload::End);
        }
        0
    }

    pub(crate) fn close_listener(&mut self, listener: Listener) {
        self.listeners.remove(&(listener.node, listener.port));
        for (stream, _) in listener.queue {
            self.reset(stream);
            self.objects.remove(&stream);
        }
    }

    pub(crate) fn close_stream(&mut self, stream: &Stream) {
        // As in Linux, unread bytes make the close a reset.
        let payload = if stream.inbox.is_empty() { Payload::End } else { Payload::Reset };
        if stream.has_shut && matches!(payload, Payload::End) || stream.is_reset {
            return;
        }
        let delay = self.latency_ns(stream.node, stream.peer_node);
        let at_ns = (self.now_ns + delay).max(stream.last_arrival_ns + 1);
        let delivery = Delivery {
            source: 0,
            source_node: stream.node,
            target: stream.peer,
            target_node: stream.peer_node,
            payload,
        };
        self.plan_at(at_ns, Event::Deliver(delivery));
    }

    /// Sends a reset to the other end.
    fn reset(&mut self, object: u64) {
        self.send_piece(object, Payload::Reset);
    }

    /// Breaks all connections between two nodes, at both ends at once.
    pub(crate) fn reset_between(&mut self, a: u32, b: u32) {
        let mut hit = Vec::new();
        for (&id, object) in &mut self.objects {
            if let Object::Stream(stream) = object
                && [(a, b), (b, a)].contains(&(stream.node, stream.peer_node))
            {
                stream.is_reset = true;
                hit.push(id);
            }
        }
        for id in hit {
            self.plan(1, Event::Pump(id));
        }
    }

    /// Holds back, from now on, data that arrives over one connection.
    pub(crate) fn hold_back_stream(&mut self, stream: u64) {
        let Some(Object::Stream(one)) = self.objects.get_mut(&stream) else { return };
        one.is_held_back = true;
        let peer = one.peer;
        if let Some(Object::Stream(other)) = self.objects.get_mut(&peer) {
            other.is_held_back = true;
        }
    }

    /// Holds back, from now on, data that arrives over the open connections between two nodes, or
    /// delivers it again if not `is_held_back`. New connections are not affected.
    pub(crate) fn hold_back(&mut self, nodes: Option<(u32, u32)>, is_held_back: bool) {
        for object in self.objects.values_mut() {
            if let Object::Stream(stream) = object
                && nodes.is_none_or(|(a, b)| {
                    [(a, b), (b, a)].contains(&(stream.node, stream.peer_node))
                })
            {
                stream.is_held_back = is_held_back;
            }
        }
        if !is_held_back {
            self.release_held();
        }
    }

    /// Delivers data that was held by links that are healed now, in order.
    pub(crate) fn release_held(&mut self) {
        let streams: Vec<u64> = self.objects.keys().copied().collect();
        for id in streams {
            let Some(Object::Stream(stream)) = self.objects.get(&id) else { continue };
            let (node, peer_node) = (stream.node, stream.peer_node);
            if stream.held.is_empty() || stream.is_held_back || self.is_cut(peer_node, node) {
                continue;
            }
            let held = match self.objects.get_mut(&id) {
                Some(Object::Stream(stream)) => std::mem::take(&mut stream.held),
                _ => continue,
            };
            // Deliver at once, so that data still on its way does not overtake them.
            for delivery in held {
                self.deliver(delivery);
            }
            self.plan(1, Event::Pump(id));
        }
    }
}

/// Returns a hash of bytes for the trace, eight at a time.
fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    words.fold(bytes.len() as u64, |hash, word| {
        (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

pub(super) fn stream(node: u32, peer_node: u32, local: SocketAddr, peer: u64) -> Stream {
    Stream {
        node,
        peer_node,
        local,
        peer,
        connecting: None,
        inbox: Inbox::default(),
        receives: VecDeque::new(),
        sends: VecDeque::new(),
        unread: 0,
        is_at_end: false,
        is_reset: false,
        has_shut: false,
        last_arrival_ns: 0,
        is_held_back: false,
        held: VecDeque::new(),
    }
}
