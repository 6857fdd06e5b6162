//! Requests of a worker to its own part of the device.

use super::Shared;
use super::sectors::{SECTOR_BYTES, Sectors, content};
use crate::random::Random;
use block::{Device, DiscardEffect};
use host::{Error, Namespace};
use reactor::time::sleep;
use reactor::{Buffer, Chunk, Segment, Segments};
use std::rc::Rc;
use std::time::Duration;

/// How often the last check repeats while the device is absent.
const LAST_LOOKS: usize = 200;
/// Longest pause between steps that a worker takes only because faults have not ended.
const LATE_PAUSE_MAX: Duration = Duration::from_millis(500);
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// A worker.
pub(super) struct Worker {
    shared: Rc<Shared>,
    namespace: Namespace,
    number: u64,
    random: Random,
    sectors: Sectors,
    /// Power losses of the device that the worker has taken into account.
    losses: u64,
}

/// A range of the worker's part, in bytes.
#[derive(Clone, Copy, Debug)]
struct Range {
    at: u64,
    bytes: u64,
}

impl Worker {
    pub(super) fn new(
        shared: &Rc<Shared>,
        namespace: &Namespace,
        number: u64,
        random: Random,
    ) -> Worker {
        let sectors = Sectors::new(shared.parameters.part_bytes);
        let (shared, namespace) = (Rc::clone(shared), namespace.clone());
        Worker { shared, namespace, number, random, sectors, losses: 0 }
    }

    pub(super) async fn run(mut self) {
        let mut steps = 0;
        while steps < self.shared.parameters.steps || self.shared.faults_left.get() > 0 {
            steps += 1;
            self.learn();
            match self.random.below(100) {
                0..35 => self.write().await,
                35..65 => self.read().await,
                65..75 => self.zero().await,
                75..82 => self.discard().await,
                82..96 => self.flush().await,
                _ => self.impossible().await,
            }
            let is_late = steps > self.shared.parameters.steps;
            let pause_max = if is_late { LATE_PAUSE_MAX } else { self.shared.parameters.pause_max };
            let pause_max_ns = pause_max.as_nanos() as u64;
            sleep(Duration::from_nanos(1 + self.random.below(pause_max_ns))).await;
        }
        let whole = Range { at: 0, bytes: self.shared.parameters.part_bytes };
        for _ in 0..LAST_LOOKS {
            if self.read_range(whole).await {
                return;
            }
            sleep(LOOK_PAUSE).await;
        }
        self.violation("the device cannot be read any more");
    }

    fn violation(&self, text: &str) {
        self.shared.violation(format!("worker {}: {text}", self.number));
    }

    /// Returns the offset on the device of an offset in the part.
    fn offset(&self, at: u64) -> u64 {
        self.number * self.shared.parameters.part_bytes + at
    }

    /// Returns a random range: usually a few blocks, sometimes up to the whole part, which is more
    /// than one command may carry.
    fn range(&mut self) -> Range {
        let block = u64::from(self.shared.parameters.block_size);
        let blocks = self.shared.parameters.part_bytes / block;
        let most = if self.random.chance(70) { blocks.min(16) } else { blocks };
        let count = self.random.between(1, most);
        let at = self.random.between(0, blocks - count) * block;
        let range = Range { at, bytes: count * block };
        if range.bytes > u64::from(self.namespace.transfer_bytes_max()) {
            self.shared.count("split");
        }
        range
    }

    /// Records how a request ended. Returns whether it succeeded.
    fn ended<T>(&self, what: &str, range: Range, result: &Result<T, Error>) -> bool {
        self.shared.count("requests");
        self.shared.log(|| {
            let result = result.as_ref().map(|_| ());
            format!("worker {} {what} of {range:?}: {result:?}", self.number)
        });
        let Err(error) = result else { return true };
        self.shared.count("failed");
        match error {
            Error::WritesLost { .. } if self.shared.losses.get() > 0 => {}
            Error::DeadlineExceeded(_) if self.shared.has_faults() => {}
            _ if error.is_connection_error() && self.shared.has_faults() => {}
            _ => self.violation(&format!("{what} of {range:?} fails: {error}")),
        }
        false
    }

    /// Takes losses of power into account. Returns whether there was one since the last call.
    /// Workers share the handle, so another worker may have received the error.
    fn learn(&mut self) -> bool {
        let is_new = self.losses < self.shared.losses.get();
        if is_new {
            self.losses = self.shared.losses.get();
            self.sectors.lost_power();
        }
        is_new
    }

    async fn write(&mut self) {
        let range = self.range();
        let number = self.sectors.number();
        let mut bytes = Buffer::with_capacity(range.bytes as usize);
        for place in range.at..range.at + range.bytes {
            if place % SECTOR_BYTES as u64 == 0 {
                bytes.extend_from_slice(&content(number, place / SECTOR_BYTES as u64));
            }
        }
        let offset = self.offset(range.at);
        let result = if self.random.chance(30) {
            // In pieces at arbitrary addresses in memory.
            let piece = self.random.between(100, 100_000) as usize;
            let chunks = bytes.chunks(piece).map(Chunk::copy_from).collect();
            self.device_result(self.namespace.write_chunks(offset, chunks).await)
        } else {
            self.namespace.write(offset, bytes.freeze()).await
        };
        self.changed("write", range, number, &result);
    }

    /// Converts the device's error back into the host's error that caused it.
    fn device_result<T>(&self, result: Result<T, block::Error>) -> Result<T, Error> {
        result.map_err(|error| {
            let source = match &error {
                block::Error::Io { source, .. } => source.get_ref(),
                _ => None,
            };
            let inner = source.and_then(|source| source.downcast_ref::<Error>()).cloned();
            inner.unwrap_or_else(|| {
                self.violation(&format!("not of the host: {error}"));
                Error::Disconnected
            })
        })
    }

    fn changed(
        &mut self,
        what: &'static str,
        range: Range,
        number: u64,
        result: &Result<(), Error>,
    ) {
        let is_done = self.ended(what, range, result);
        self.sectors.wrote(range.at, range.bytes, number, is_done);
        // The write may have been executed before a loss of power meanwhile, or after it.
        self.learn();
        self.go_on(result);
    }

    /// Acknowledges a loss of power: until then the handle fails all requests.
    fn go_on<T>(&self, result: &Result<T, Error>) {
        if matches!(result, Err(Error::WritesLost { .. })) {
            self.shared.count("writes_lost");
            self.namespace.adopt_incarnation();
        }
    }

    async fn read(&mut self) {
        let range = self.range();
        self.read_range(range).await;
    }

    async fn read_range(&mut self, range: Range) -> bool {
        let offset = self.offset(range.at);
        let bytes = range.bytes as usize;
        let result = match self.random.below(3) {
            0 => {
                let read = self.namespace.read(offset, Buffer::zeroed(bytes)).await;
                read.map(|buffer| buffer.to_vec())
            }
            1 => {
                let read = Device::read(&self.namespace, offset, bytes).await;
                self.device_result(read).map(|chunk| chunk.to_bytes().to_vec())
            }
            _ => self.read_scattered(offset, bytes).await,
        };
        let is_done = self.ended("read", range, &result);
        let is_stable = !self.learn();
        if let Ok(found) = &result
            && let Some(wrong) = self.sectors.check(range.at, found, is_stable)
        {
            self.violation(&wrong);
        }
        self.go_on(&result);
        is_done
    }

    /// Reads into segments that need not be whole blocks.
    async fn read_scattered(&mut self, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
        let unit =
            if self.random.chance(50) { self.shared.parameters.block_size as usize } else { 1 };
        let first = (self.random.below(bytes as u64) as usize) / unit * unit;
        let mut segments = Segments::new();
        for len in [first, bytes - first] {
            if len > 0 {
                segments.push(Segment::Buffer(Buffer::with_capacity(len), 0..len));
            }
        }
        let read = self.namespace.read_into(offset, segments).await;
        let filled = self.device_result(read)?;
        let buffers = filled.into_iter().filter_map(Segment::into_buffer);
        Ok(buffers.fold(Vec::with_capacity(bytes), |mut whole, buffer| {
            whole.extend_from_slice(&buffer);
            whole
        }))
    }

    async fn zero(&mut self) {
        let range = self.range();
        let result = self.namespace.write_zeroes(self.offset(range.at), range.bytes).await;
        self.changed("write zeroes", range, 0, &result);
    }

    async fn discard(&mut self) {
        let range = self.range();
        let effect = self.namespace.geometry().discard;
        let discards = self.shared.parameters.discards;
        let expected = if discards { DiscardEffect::Zeroes } else { DiscardEffect::Arbitrary };
        if effect != expected {
            self.violation(&format!("discarding is said to be {effect:?}, not {expected:?}"));
        }
        let result = self.namespace.discard(self.offset(range.at), range.bytes).await;
        if discards {
            return self.changed("discard", range, 0, &result);
        }
        self.ended("discard", range, &result);
        self.go_on(&result);
    }

    async fn flush(&mut self) {
        let result = self.namespace.flush().await;
        let whole = Range { at: 0, bytes: self.shared.parameters.part_bytes };
        if self.ended("flush", whole, &result) && !self.learn() {
            self.sectors.flushed();
        }
        self.go_on(&result);
    }

    /// Checks that impossible requests fail immediately.
    async fn impossible(&mut self) {
        let block = u64::from(self.shared.parameters.block_size);
        let end = self.shared.parameters.device_bytes();
        let (offset, bytes) =
            *self.random.of(&[(1, block), (0, block + 1), (end, block), (end - block, 2 * block)]);
        let result = self.namespace.read(offset, Buffer::zeroed(bytes as usize)).await;
        if !matches!(result, Err(Error::InvalidRequest { .. })) {
            self.violation(&format!("a read of {bytes} bytes at {offset} succeeds"));
        }
    }
}
