//! Hosts that reserve, and a device whose writes wait for the test.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, SIZE, TestServer};
use block::{Backing, Device, Geometry, Incarnation, IoFuture, MemoryBacking};
use nvme::command::{
    AcquireAction, RegisterAction, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport,
};
use nvme::opcode::NvmOpcode;
use nvme::reservation::{
    AcquireKeys, RegisterKeys, RegisteredController, ReleaseKeys, ReservationStatus,
    ReservationType,
};
use nvme::{Nsid, Status, U64};
use reactor::{Chunk, Segments};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

/// A host with an admin and an I/O queue pair.
pub struct Host {
    pub identity: HostIdentity,
    pub admin: Client,
    pub io: Client,
}

pub type Register = (RegisterAction, bool, Option<bool>);

impl Host {
    pub fn new(server: &TestServer, number: u8) -> Self {
        let identity = HostIdentity::number(number);
        let (admin, io) = pair(server, &identity);
        Self { identity, admin, io }
    }

    pub fn change(
        &mut self,
        (action, ignores_key, persist): Register,
        old: u64,
        new: u64,
    ) -> Status {
        let sqe = ReservationRegister { action, ignores_key, persist }.encode(Nsid(1));
        let keys = RegisterKeys { crkey: U64::new(old), nrkey: U64::new(new) };
        self.io.command(sqe, Some((Transfer::InCapsule, keys.bytes())), 0).0.status()
    }

    pub fn register(&mut self, key: u64) -> Status {
        self.change((RegisterAction::Register, false, None), 0, key)
    }

    pub fn begin_acquire(
        &mut self,
        action: AcquireAction,
        key: u64,
        victims: u64,
        kind: ReservationType,
    ) -> u16 {
        let sqe = ReservationAcquire { action, kind }.encode(Nsid(1));
        let keys = AcquireKeys { crkey: U64::new(key), prkey: U64::new(victims) };
        self.io.submit(sqe, Some((Transfer::R2t, keys.bytes())), 0)
    }

    pub fn acquire(
        &mut self,
        action: AcquireAction,
        key: u64,
        victims: u64,
        kind: ReservationType,
    ) -> Status {
        let cid = self.begin_acquire(action, key, victims, kind);
        self.io.wait(cid).0.status()
    }

    pub fn release(&mut self, release: ReservationRelease, key: u64) -> Status {
        let keys = ReleaseKeys { crkey: U64::new(key) };
        let sqe = release.encode(Nsid(1));
        self.io.command(sqe, Some((Transfer::InCapsule, keys.bytes())), 0).0.status()
    }

    pub fn report(&mut self) -> (ReservationStatus, Vec<RegisteredController>) {
        let bytes = 64 * 9;
        let report = ReservationReport { dwords: u64::from(bytes / 4), is_extended: true };
        let (cqe, data) = self.io.command(report.encode(Nsid(1)).unwrap(), None, bytes);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let status = *ReservationStatus::from_prefix(&data).unwrap();
        let entries = data[64..].chunks(64).take(usize::from(status.regctl.get()));
        (status, entries.map(|it| *RegisteredController::from_prefix(it).unwrap()).collect())
    }

    pub fn write(&mut self, seed: u8) -> Status {
        let cid = self.begin_write(seed);
        self.io.wait(cid).0.status()
    }

    pub fn begin_write(&mut self, seed: u8) -> u16 {
        self.io.submit(rw(NvmOpcode::WRITE, 0, 1), Some((Transfer::R2t, &pattern(seed, 1))), 0)
    }

    pub fn read(&mut self) -> Result<Vec<u8>, Status> {
        let (cqe, data) = self.io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
        if cqe.status().is_success() { Ok(data) } else { Err(cqe.status()) }
    }
}

#[derive(Default)]
struct State {
    is_closed: bool,
    waiting: Vec<Waker>,
    arrived: usize,
}

/// A memory device whose writes wait while the gate is closed.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<dyn Backing>,
    state: Arc<Mutex<State>>,
}

impl Gate {
    pub fn new() -> Self {
        let inner = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
        Self { inner, state: Arc::default() }
    }

    pub fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    pub fn open(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_closed = false;
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// Waits until `writes` writes have arrived in total.
    pub fn wait_for(&self, writes: usize) {
        while self.state.lock().unwrap().arrived < writes {
            std::thread::yield_now();
        }
    }
}

impl Backing for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(GateDevice { inner: self.inner.attach(), state: Arc::clone(&self.state) })
    }
}

struct GateDevice {
    inner: Rc<dyn Device>,
    state: Arc<Mutex<State>>,
}

impl Device for GateDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        self.inner.read(offset, len)
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        self.inner.read_into(offset, segments)
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        let (inner, state) = (Rc::clone(&self.inner), Arc::clone(&self.state));
        state.lock().unwrap().arrived += 1;
        IoFuture::boxed(async move {
            std::future::poll_fn(|cx| {
                let mut state = state.lock().unwrap();
                if state.is_closed {
                    state.waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
            inner.write(offset, chunk).await
        })
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        self.inner.write_chunks(offset, chunks)
    }

    fn flush(&self) -> IoFuture<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.write_zeroes(offset, len)
    }
}
