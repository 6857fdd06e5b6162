//! The queue itself: waiting requests in the order of the medium, merged, with a deadline each.

use super::bell::Bell;
use super::reply::Sender;
use crate::error::Error;
use reactor::Chunk;
use std::collections::BTreeMap;
use std::time::Duration;

/// One caller's part of a request.
#[derive(Debug)]
pub(super) struct Part {
    /// The bell of the thread that made the request.
    pub(super) bell: Bell,
    pub(super) len: usize,
    /// Data to write; empty for reads.
    pub(super) chunks: Vec<Chunk>,
    /// Receives the chunk that was read; for writes an empty one.
    pub(super) reply: Sender<Result<Chunk, Error>>,
}

/// One request to the device.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) is_write: bool,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// In the order of their offsets, without gaps.
    pub(super) parts: Vec<Part>,
    /// Its deadline, in nanoseconds of the reactor's clock.
    deadline_ns: u64,
}

impl Request {
    pub(super) fn new(is_write: bool, offset: u64, part: Part, deadline_ns: u64) -> Self {
        let len = part.len as u64;
        Self { is_write, offset, len, parts: vec![part], deadline_ns }
    }

    fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Returns the part of the thread that issues it: the first that still waits.
    fn owner(&self) -> Option<&Part> {
        self.parts.iter().find(|part| !part.reply.is_closed())
    }
}

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) depth_max: usize,
    pub(super) merge_bytes_max: u64,
}

/// Requests in the order of the medium: by offset, and for one offset by age.
type Key = (u64, u64);

/// The waiting requests, and the number of requests at the device.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<Key, Request>,
    /// Deadlines of waiting requests, the earliest first.
    deadlines: BTreeMap<(u64, u64), Key>,
    sequence: u64,
    /// The end of the last request given to the device.
    head: u64,
    dispatched: usize,
    /// Dispatched requests that their owners have not issued yet.
    granted: Vec<Request>,
    pub(super) merges: u64,
}

impl Queue {
    /// Adds a request, or merges it with another one if they touch.
    pub(super) fn insert(&mut self, request: Request, limits: Limits) {
        let request = match self.merge_behind(request, limits) {
            None => return,
            Some(request) => self.merge_before(request, limits),
        };
        self.put(request);
    }

    fn put(&mut self, request: Request) {
        let key = (request.offset, self.sequence);
        self.deadlines.insert((request.deadline_ns, self.sequence), key);
        self.sequence += 1;
        self.waiting.insert(key, request);
    }

    fn take(&mut self, key: Key) -> Option<Request> {
        let request = self.waiting.remove(&key)?;
        self.deadlines.remove(&(request.deadline_ns, key.1));
        Some(request)
    }

    /// Appends the request to one that ends where it begins; returns it if there is none.
    fn merge_behind(&mut self, request: Request, limits: Limits) -> Option<Request> {
        let before = self.waiting.range_mut(..(request.offset, 0)).next_back();
        let Some((_, other)) = before.filter(|(_, other)| {
            other.end() == request.offset
                && other.is_write == request.is_write
                && other.len + request.len <= limits.merge_bytes_max
        }) else {
            return Some(request);
        };
        other.len += request.len;
        other.parts.extend(request.parts);
        self.merges += 1;
        None
    }

    /// Merges a request that begins where this one ends, if there is one.
    fn merge_before(&mut self, mut request: Request, limits: Limits) -> Request {
        let end = request.end();
        let found = self.waiting.range((end, 0)..=(end, u64::MAX)).find(|(_, other)| {
            other.is_write == request.is_write && other.len + request.len <= limits.merge_bytes_max
        });
        let key = found.map(|(key, _)| *key);
        if let Some(other) = key.and_then(|key| self.take(key)) {
            request.len += other.len;
            request.parts.extend(other.parts);
            // The merged request has the earlier deadline of both.
            request.deadline_ns = request.deadline_ns.min(other.deadline_ns);
            self.merges += 1;
        }
        request
    }

    /// Dispatches requests up to the device's depth and returns those that the thread with this
    /// bell issues; it rings for other threads. Requests that no caller waits for are dropped.
    pub(super) fn dispatch(&mut self, bell: &Bell, now: Duration, limits: Limits) -> Vec<Request> {
        let is_mine = |request: &mut Request| request.owner().is_some_and(|it| it.bell.is(bell));
        let mut mine: Vec<Request> = self.granted.extract_if(.., is_mine).collect();
        while let Some(mut request) = self.next(now, limits) {
            if is_mine(&mut request) {
                mine.push(request);
            } else if let Some(part) = request.owner() {
                part.bell.ring();
                self.granted.push(request);
            } else {
                self.dispatched -= 1;
            }
        }
        mine
    }

    /// Records the end of a request.
    pub(super) fn ended(&mut self) {
        self.dispatched -= 1;
    }

    /// Removes a waiting caller: its granted requests go to other callers, or are dropped.
    pub(super) fn abandoned(&mut self) {
        let before = self.granted.len();
        self.granted.retain(|request| request.owner().is_some());
        self.dispatched -= before - self.granted.len();
        for part in self.granted.iter().filter_map(Request::owner) {
            part.bell.ring();
        }
        if self.granted.len() < before {
            self.ring_all();
        }
    }

    /// Takes the next request for the device: an overdue one, otherwise upwards from the end of the
    /// last request, and then from the start again.
    fn next(&mut self, now: Duration, limits: Limits) -> Option<Request> {
        if self.dispatched >= limits.depth_max {
            return None;
        }
        let now_ns = now.as_nanos() as u64;
        let late =
            self.deadlines.first_key_value().filter(|((deadline, _), _)| *deadline <= now_ns);
        let key = if let Some((_, key)) = late {
            *key
        } else {
            let above = self.waiting.range((self.head, 0)..).next();
            *above.or_else(|| self.waiting.iter().next())?.0
        };
        let request = self.take(key)?;
        self.head = request.end();
        self.dispatched += 1;
        Some(request)
    }

    /// Wakes all waiting callers to check the queue again.
    pub(super) fn ring_all(&self) {
        for part in self.waiting.values().flat_map(|request| &request.parts) {
            part.bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reply::reply;
    use super::*;

    const LIMITS: Limits = Limits { depth_max: 100, merge_bytes_max: 4 };

    fn request(is_write: bool, offset: u64, len: usize, deadline_ns: u64) -> Request {
        let part = Part { bell: Bell::default(), len, chunks: Vec::new(), reply: reply().0 };
        Request::new(is_write, offset, part, deadline_ns)
    }

    fn order(queue: &mut Queue, now_ns: u64) -> Vec<(bool, u64, u64, usize)> {
        let now = Duration::from_nanos(now_ns);
        std::iter::from_fn(|| queue.next(now, LIMITS))
            .map(|it| (it.is_write, it.offset, it.len, it.parts.len()))
            .collect()
    }

    /// Goal: one sweep upwards, then from the start again; for one offset the older first.
    #[test]
    fn requests_go_up_and_around() {
        let mut queue = Queue { head: 50, ..Queue::default() };
        for offset in [90, 10, 70, 30, 70] {
            queue.insert(request(false, offset, 1, 1000), LIMITS);
        }
        let offsets: Vec<u64> = order(&mut queue, 0).iter().map(|it| it.1).collect();
        assert_eq!(offsets, [70, 90, 10, 30, 70]);
    }

    /// Goal: requests that touch are merged behind, before and on both sides, up to the limit,
    /// reads with reads only, in the order of the medium.
    #[test]
    fn neighbours_are_merged() {
        let mut queue = Queue::default();
        for (is_write, offset) in [(false, 10), (false, 12), (true, 13), (false, 11), (false, 9)] {
            queue.insert(request(is_write, offset, 1, 1000), LIMITS);
        }
        // 10, 11 and 12 come together: 11 goes behind 10; 9 goes before them.
        assert_eq!(queue.merges, 2);
        let found = order(&mut queue, 0);
        assert_eq!(found, [(false, 9, 3, 3), (false, 12, 1, 1), (true, 13, 1, 1)]);
        for offset in 0..6 {
            queue.insert(request(true, offset, 1, 1000), LIMITS);
        }
        queue.head = 0;
        assert_eq!(order(&mut queue, 0), [(true, 0, 4, 4), (true, 4, 2, 2)]);
    }

    /// Goal: an overdue request is issued first, with the requests merged into it.
    #[test]
    fn nothing_waits_for_ever() {
        let mut queue = Queue { head: 50, ..Queue::default() };
        queue.insert(request(false, 60, 1, 1000), LIMITS);
        queue.insert(request(false, 11, 1, 1000), LIMITS);
        queue.insert(request(false, 10, 1, 5), LIMITS);
        let found: Vec<u64> = order(&mut queue, 5).iter().map(|it| it.1).collect();
        assert_eq!(found, [10, 60]);
        assert!(queue.deadlines.is_empty() && queue.waiting.is_empty());
    }

    /// Goal: owners issue their own requests. Requests are granted to other threads; these keep
    /// their places at the device, and lose them when they no longer wait.
    #[test]
    fn owners_issue_their_own() {
        let limits = Limits { depth_max: 2, ..LIMITS };
        let mut queue = Queue::default();
        let mut receivers = Vec::new();
        let bells = [Bell::default(), Bell::default()];
        for (owner, offset) in [(0, 1), (1, 3), (0, 5), (1, 7)] {
            let (reply, receiver) = reply();
            let bell: &Bell = &bells[owner];
            let part = Part { bell: bell.clone(), len: 1, chunks: Vec::new(), reply };
            queue.insert(Request::new(false, offset, part, 99), limits);
            receivers.push(receiver);
        }
        let dispatch = |queue: &mut Queue, owner: usize| -> Vec<u64> {
            let mine = queue.dispatch(&bells[owner], Duration::ZERO, limits);
            mine.iter().map(|it| it.offset).collect()
        };
        assert_eq!(dispatch(&mut queue, 0), [1]);
        assert_eq!(dispatch(&mut queue, 0), []);
        assert_eq!(dispatch(&mut queue, 1), [3]);
        queue.ended();
        assert_eq!(dispatch(&mut queue, 1), []);
        // 5 is granted to the first thread, which stops waiting: its place is free for 7.
        receivers[2].close();
        queue.abandoned();
        assert_eq!(dispatch(&mut queue, 1), [7]);
        queue.ended();
        queue.ended();
        assert_eq!((queue.dispatched, queue.granted.len()), (0, 0));
    }

    /// Goal: the device never has more than its depth.
    #[test]
    fn depth_is_kept() {
        let limits = Limits { depth_max: 1, ..LIMITS };
        let mut queue = Queue::default();
        queue.insert(request(false, 1, 1, 9), limits);
        queue.insert(request(false, 7, 1, 9), limits);
        assert!(queue.next(Duration::ZERO, limits).is_some());
        assert!(queue.next(Duration::ZERO, limits).is_none());
        queue.ended();
        assert_eq!(queue.next(Duration::ZERO, limits).unwrap().offset, 7);
    }
}
