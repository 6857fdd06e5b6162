//! Requests and answers by commands of an `io_uring` (`FUSE_OVER_IO_URING`).
//!
//! Each CPU has a queue in the kernel, and one task serves each entry of a queue. The task hands an
//! area for headers and one for payload to the kernel (REGISTER) and gets a request in them. It
//! lets the file system answer, and returns the answer and the areas with one command that also
//! waits for the next request (COMMIT\_AND\_FETCH). One runtime may serve the queues of all CPUs;
//! the request is then copied in the context of the thread that runs it.
//!
//! The payload area's address is fixed, so unlike with the device it cannot be given away. WRITE
//! data is a slice of it that must be dropped before the answer goes out; this module waits for
//! that. READ requests carry the slice for their data, so that the data is not copied again.
//!
//! An entry is in use while the file system works, so blocking locks could use up all entries. When
//! the last free entry of a queue starts to wait, another is registered, up to a cap on address
//! space, and beyond it from a reserve if all entries wait for long ([`supply`]). The kernel (as of Linux 6.18) uses a new entry only for the next request; a request that
//! was queued before waits for the next commit. So a thread on that CPU then requests the mount's
//! statistics: the commit of that answer fetches the queued request.
//!
//! The queue shows the CPU that a request comes from. Where the runtime may have a thread on each
//! CPU ([`reactor::relay`]), that CPU's thread serves callers with small requests. A single thread
//! that serves all queues runs on the CPU of a lone caller ([`reactor::affinity`]). Both ways the
//! caller, which blocks until it has the answer, is woken by a switch and not by an interrupt.

mod supply;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use reactor::affinity::{self, Follower};
use reactor::relay::{self, Runner};
use reactor::{Chunk, Handle, Region, Segment, UringCmd};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::abi::{
    InHeader, URING_CMD_COMMIT_AND_FETCH, URING_CMD_REGISTER, UringCmdReq, UringEntInOut,
    UringReqHeader, WriteIn, opcode,
};
use crate::error::{DecodeError, FuseError};
use crate::reply::{Encoded, encode_error};
use crate::request::{Message, decode_write, first_argument_len};
use crate::session::{Connection, FetchError, FileSystem, Incoming, sort_fetch_error};
use crate::transport::{is_prompt, possible_cpus};
use crate::types::{Errno, Unique};

use supply::{Free, Need, Supply};

/// Bytes of the area for headers: `fuse_uring_req_header`, and behind it the two I/O vectors that
/// REGISTER needs.
const HEADERS_BYTES: usize = 4096;
const IOVECS_OFFSET: usize = 1024;
/// Interval of the checks whether the file system has dropped WRITE data.
const RELEASE_CHECK: Duration = Duration::from_micros(50);
/// A delay that is long enough for a registration to reach the kernel.
const FETCH_DELAY: Duration = Duration::from_millis(1);

/// Prompt requests of one CPU in a row after which the CPU's own thread serves them.
const PROMPT_MIN: u32 = 16;

/// `struct iovec` twice.
#[repr(C)]
#[derive(IntoBytes, Immutable, KnownLayout)]
struct Iovecs([[u64; 2]; 2]);

/// One CPU's queue.
struct Queue {
    number: u16,
    /// The entries that the kernel holds.
    free: Free,
    /// Address space left for payload, shared by all queues.
    supply: Rc<Supply>,
    /// Binds the thread to the CPU of a lone caller; shared by all queues.
    follower: Rc<Follower>,
    /// Payload memory that is mapped and not used by an entry yet.
    payloads: RefCell<Vec<Region>>,
    /// Prompt requests in a row, up to `PROMPT_MIN`.
    prompt: Cell<u32>,
    /// The thread that has sent the latest prompt request, and its CPU; shared by all queues.
    latest: Rc<Cell<(u32, u16)>>,
}

impl Queue {
    /// Returns the thread that waits for the next request after one that is prompt or not. The
    /// CPU's own thread serves a caller that sends small requests; transfers leave the caller its
    /// CPU. Moving an entry costs a wake-up, so it takes a while.
    fn runner(&self, is_prompt: bool, thread: u32) -> Runner {
        let prompt = if is_prompt { (self.prompt.get() + 1).min(PROMPT_MIN) } else { 0 };
        self.prompt.set(prompt);
        if prompt < PROMPT_MIN {
            return Runner::OWN;
        }
        let (latest, left) = self.latest.replace((thread, self.number));
        if thread != 0 && latest == thread && left != self.number {
            affinity::hold(left);
        }
        relay::of_cpu(self.number)
    }

    /// Returns memory for the payload of one more entry. With huge pages the device reads at full
    /// speed. Entries of one queue share huge pages, and the kernel prefers the entry that was used
    /// last, so only as many are touched as were needed at once.
    fn payload(&self, bytes: usize, in_huge_pages: bool) -> io::Result<Region> {
        if !in_huge_pages {
            return Region::new(bytes);
        }
        let mut payloads = self.payloads.borrow_mut();
        if payloads.is_empty() {
            *payloads = Region::in_huge_pages(bytes)?;
        }
        payloads.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

/// Checks whether the current runtime can carry the transport; the error is the reason why not. Has
/// to be called before INIT, when the kernel answers a REGISTER from a capable ring with `EAGAIN`.
pub(crate) async fn probe(device: &Handle) -> Result<(), String> {
    let command = command(URING_CMD_REGISTER, &UringCmdReq::default());
    // SAFETY: the kernel refuses the command before it looks at any memory: the connection is not
    // initialised yet.
    let result = unsafe { device.uring_cmd(command) }.await;
    match result.map_err(|error| error.raw_os_error()) {
        Err(Some(libc::EAGAIN)) => Ok(()),
        Err(Some(libc::EINVAL)) => {
            Err("the runtime has no 128-byte submission entries (reactor::Config::sqe128)".into())
        }
        Err(Some(libc::EOPNOTSUPP)) => {
            Err("the reactor's engine is epoll, not io_uring (tsumugi --version --verbose: why)"
                .into())
        }
        Err(Some(errno)) => Err(format!(
            "the kernel refuses io_uring commands: {}",
            io::Error::from_raw_os_error(errno)
        )),
        Err(None) => Err("the runtime is simulated".into()),
        Ok(_) => Err("the kernel accepted a command before INIT".into()),
    }
}

/// Registers the entries of all queues and serves them.
pub(crate) fn start<F: FileSystem>(connection: &Rc<Connection<F>>) {
    let queues = match possible_cpus() {
        Ok(queues) => queues,
        Err(source) => {
            // No queue is registered, so the kernel would hold back all requests for ever.
            let action = "count the CPUs for FUSE over io_uring";
            connection.end(Some(FuseError::Transport { action, source }));
            return;
        }
    };
    let options = &connection.options;
    let supply =
        Rc::new(Supply::new(options.ring_payload_bytes_max, options.ring_reserve_bytes_max));
    let (follower, latest) = (Follower::new(), Rc::new(Cell::new((0, 0))));
    // Every queue needs an entry, so all queues get their first before any gets its second.
    let queues: Vec<_> = (0..queues)
        .map(|number| {
            let (supply, follower) = (Rc::clone(&supply), Rc::clone(&follower));
            let (latest, (free, payloads, prompt)) = (Rc::clone(&latest), Default::default());
            Rc::new(Queue { number, free, supply, follower, payloads, prompt, latest })
        })
        .collect();
    for round in 0..connection.options.ring_entries_per_queue {
        for queue in &queues {
            add_entry(connection, queue, if round == 0 { Need::First } else { Need::Ordinary });
        }
    }
}

/// Starts the task of one more entry, if there is address space left for this need. Returns whether
/// it did.
fn add_entry<F: FileSystem>(connection: &Rc<Connection<F>>, queue: &Rc<Queue>, need: Need) -> bool {
    if !queue.supply.take(payload_bytes(connection), need) {
        return false;
    }
    queue.free.give();
    let (connection, queue) = (Rc::clone(connection), Rc::clone(queue));
    let task: std::pin::Pin<Box<dyn Future<Output = ()>>> =
        Box::pin(serve(Rc::clone(&connection), queue, need == Need::First));
    connection.spawn(task);
    true
}

/// Gives a queue one more entry because its last one waits: now, or from the reserve if all entries
/// wait for long.
fn relieve<F: FileSystem>(connection: &Rc<Connection<F>>, queue: &Rc<Queue>) {
    if add_entry(connection, queue, Need::Ordinary) {
        connection.spawn(fetch_queued(Rc::clone(connection), queue.number));
    } else if queue.free.begin_watch() {
        connection.spawn(watch(Rc::clone(connection), Rc::clone(queue)));
    }
}

/// Gives a queue entries of the reserve for as long as all its entries wait.
async fn watch<F: FileSystem>(connection: Rc<Connection<F>>, queue: Rc<Queue>) {
    while queue.free.is_stuck(|| connection.has_ended()).await {
        if !add_entry(&connection, &queue, Need::Stuck) {
            if queue.supply.runs_out() {
                tracing::warn!(
                    cpu = queue.number,
                    "too many FUSE requests wait: further ones of this CPU wait for an answer"
                );
            }
            return queue.free.end_watch();
        }
        fetch_queued(Rc::clone(&connection), queue.number).await;
    }
}

/// Makes the kernel look for queued requests of one CPU, once the new entry is registered.
async fn fetch_queued<F: FileSystem>(connection: Rc<Connection<F>>, cpu: u16) {
    // The registration is submitted at the end of this turn of the loop.
    reactor::time::sleep(FETCH_DELAY).await;
    let path = connection.mountpoint.clone();
    let ask = move || {
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(cpu.into());
        match rustix::thread::sched_setaffinity(None, &cpus) {
            // The answer does not matter, only that there was a request.
            Ok(()) => drop(rustix::fs::statfs(&path)),
            Err(error) => tracing::debug!(%error, cpu, "queued FUSE requests wait for the next"),
        }
    };
    // A thread of its own, since the call may itself wait in the queue.
    if let Err(error) = std::thread::Builder::new().name("fuse-fetch".into()).spawn(ask) {
        tracing::warn!(%error, cpu, "queued FUSE requests wait for the next");
    }
}

/// Returns the least size that the kernel accepts for an entry's payload.
fn payload_bytes<F: FileSystem>(connection: &Connection<F>) -> usize {
    connection.negotiated.max_write_bytes.max(8192) as usize
}

/// Serves one entry until the connection ends. Without its first entry a queue would hold requests
/// for ever; others may fail.
async fn serve<F: FileSystem>(connection: Rc<Connection<F>>, queue: Rc<Queue>, is_first: bool) {
    let in_huge_pages = connection.options.ring_payload_in_huge_pages;
    let payload = queue.payload(payload_bytes(&connection), in_huge_pages);
    let entry = match payload.and_then(Entry::new) {
        Ok(entry) => entry,
        Err(source) if is_first => {
            let action = "map memory for FUSE over io_uring";
            return connection.end(Some(FuseError::Transport { action, source }));
        }
        Err(error) => {
            tracing::warn!(cpu = queue.number, %error, "no memory for one more FUSE entry");
            return queue.free.take();
        }
    };
    let mut command = entry.register(queue.number);
    let mut is_registered = false;
    let mut runner = Runner::OWN;
    loop {
        if let Err(error) = entry.run(&connection.device, runner, command).await {
            queue.free.take();
            return finish(&connection, error, is_registered);
        }
        is_registered = true;
        queue.free.take();
        let (header, commit_id, incoming) = entry.receive(&connection);
        let when_waiting = || {
            if queue.free.is_empty() {
                relieve(&connection, &queue);
            }
        };
        let encoded = match incoming {
            Incoming::Request(request) => {
                let is_prompt = is_prompt(&request.operation);
                runner = queue.runner(is_prompt, header.pid);
                if runner == Runner::OWN {
                    queue.follower.note(queue.number, is_prompt);
                }
                connection.answer(header.opcode, request, when_waiting).await
            }
            Incoming::Answer(encoded) => encoded,
            // No kernel so far sends such messages this way; the entry needs an answer to be free
            // again.
            Incoming::Nothing => encode_error(Errno::NOSYS),
        };
        entry.put(&header, encoded);
        entry.wait_until_released().await;
        command = commit(queue.number, commit_id);
        queue.free.give();
    }
}

/// Handles the failure of an entry's command: at the connection's end, or because the kernel
/// refused its registration.
fn finish<F: FileSystem>(connection: &Connection<F>, error: io::Error, is_registered: bool) {
    match sort_fetch_error(error) {
        // The kernel falls back to the device when it refuses a registration.
        FetchError::Broken(error) if !is_registered => {
            tracing::warn!(%error, "FUSE over io_uring entry refused; using /dev/fuse");
        }
        FetchError::Broken(error) => connection.end(Some(error)),
        // The kernel has no transient errors here: the entry is lost with its request.
        FetchError::Transient | FetchError::Ended => connection.end(None),
    }
}

fn commit(queue: u16, commit_id: u64) -> UringCmd {
    let request = UringCmdReq { commit_id, qid: queue, ..UringCmdReq::default() };
    command(URING_CMD_COMMIT_AND_FETCH, &request)
}

fn command(operation: u32, request: &UringCmdReq) -> UringCmd {
    let mut bytes = [0; 80];
    bytes[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
    UringCmd { operation, command: bytes, address: 0, len: 0 }
}

/// An entry's memory.
struct Entry {
    headers: Region,
    payload: Region,
    /// The kernel may write into the memory.
    is_lent: Cell<bool>,
}

impl Entry {
    fn new(payload: Region) -> io::Result<Self> {
        let headers = Region::new(HEADERS_BYTES)?;
        let address = |region: &Region| region.range(0, 1).as_ptr() as u64;
        let iovecs = Iovecs([
            [address(&headers), size_of::<UringReqHeader>() as u64],
            [address(&payload), payload.len() as u64],
        ]);
        headers.copy_in(IOVECS_OFFSET, iovecs.as_bytes());
        Ok(Self { headers, payload, is_lent: Cell::new(false) })
    }

    /// Returns the command that registers the entry with the kernel.
    fn register(&self, queue: u16) -> UringCmd {
        let request = UringCmdReq { qid: queue, ..UringCmdReq::default() };
        let iovecs = self.headers.range(IOVECS_OFFSET, size_of::<Iovecs>());
        UringCmd {
            address: iovecs.as_ptr() as u64,
            len: 2,
            ..command(URING_CMD_REGISTER, &request)
        }
    }

    /// Sends a command and waits for the next request.
    async fn run(&self, device: &Handle, runner: Runner, command: UringCmd) -> io::Result<()> {
        self.is_lent.set(true);
        // SAFETY: the command names the entry's two regions: at REGISTER itself, and later through
        // the kernel's memory of it. They are not unmapped while a command is under way: `drop`
        // leaks them then.
        let result = unsafe { device.uring_cmd_on(runner, command) }.await;
        self.is_lent.set(false);
        result.map(drop)
    }

    /// Decodes the request. Also returns the number to commit it with.
    fn receive<F: FileSystem>(&self, connection: &Connection<F>) -> (InHeader, u64, Incoming) {
        let mut headers = UringReqHeader::new_zeroed();
        self.headers.copy_out(0, headers.as_mut_bytes());
        let header = InHeader::read_from_prefix(&headers.in_out)
            .map_or_else(|_| InHeader::default(), |(header, _)| header);
        let state = headers.ring_ent_in_out;
        let message = self.decode(connection, &header, &headers, state.payload_sz as usize);
        (header, state.commit_id, connection.receive(&header, message))
    }

    fn decode<F: FileSystem>(
        &self,
        connection: &Connection<F>,
        header: &InHeader,
        headers: &UringReqHeader,
        payload_bytes: usize,
    ) -> Result<Message, DecodeError> {
        if payload_bytes > self.payload.len() {
            return Err(DecodeError::Length {
                opcode: header.opcode,
                header_bytes: payload_bytes,
                received_bytes: self.payload.len(),
            });
        }
        let payload = self.payload.range(0, payload_bytes);
        let decoder = connection.decoder;
        if header.opcode == opcode::WRITE {
            let input = WriteIn::read_from_prefix(&headers.op_in)
                .map_or_else(|_| WriteIn::default(), |(input, _)| input);
            return decode_write(&input, payload.into()).map(Message::Operation);
        }
        let first_len = first_argument_len(header.opcode, decoder);
        if payload_bytes == 0 {
            let destination =
                (header.opcode == opcode::READ).then(|| self.payload.range(0, self.payload.len()));
            return decoder.decode(header, &headers.op_in[..first_len], destination);
        }
        let mut body = vec![0; first_len + payload_bytes];
        body[..first_len].copy_from_slice(&headers.op_in[..first_len]);
        payload.copy_out(&mut body[first_len..]);
        decoder.decode(header, &body, None)
    }

    /// Puts an answer into the areas that the kernel reads.
    fn put(&self, request: &InHeader, encoded: Encoded) {
        let encoded = if encoded.body_len() > self.payload.len() {
            tracing::error!(bytes = encoded.body_len(), "FUSE answer too long: EIO");
            encode_error(Errno::IO)
        } else {
            encoded
        };
        let body_len = encoded.body_len();
        let header = encoded.header(Unique(request.unique));
        self.headers.copy_in(0, header.as_bytes());
        self.payload.copy_in(0, encoded.fixed());
        let mut offset = encoded.fixed().len();
        for chunk in &encoded.chunks {
            self.put_chunk(offset, chunk);
            offset += chunk.len();
        }
        let state = UringEntInOut { payload_sz: body_len as u32, ..UringEntInOut::default() };
        self.headers
            .copy_in(std::mem::offset_of!(UringReqHeader, ring_ent_in_out), state.as_bytes());
    }

    /// Copies a chunk to its place in the payload unless it lies there already.
    fn put_chunk(&self, offset: usize, chunk: &Chunk) {
        let target = self.payload.range(offset, chunk.len());
        if !std::ptr::eq(target.as_ptr(), chunk.as_ptr()) {
            Segment::Region(target).fill_from_chunk(chunk, 0);
        }
    }

    /// Waits until no slice of the payload is held any more.
    async fn wait_until_released(&self) {
        while !self.payload.is_unique() {
            reactor::time::sleep(RELEASE_CHECK).await;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.is_lent.get() {
            // The task was dropped during a command; the kernel may still write here.
            std::mem::forget(self.headers.clone());
            std::mem::forget(self.payload.clone());
        }
    }
}
