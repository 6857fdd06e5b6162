//! Creating a link: `ICReq`, Connect, enabling the controller, identifying it, I/O queue pairs.

use super::{ControllerInfo, Inner, Stage, proof};
use crate::connection::{Connection, check_outcome};
use crate::error::{ConnectionEnd, Error};
use crate::options::{ConnectOptions, TlsOptions, Transport};
use crate::queue_pair::{DEPTH_MAX, Data, Destination};
use auth::KeyPair;
use nvme::command::SetFeatures;
use nvme::fabrics::{Connect, ConnectData, ConnectResult, PropertyGet, PropertySet};
use nvme::feature::{AsyncEventConfig, QueueCounts, fid};
use nvme::identify::{IDENTIFY_BYTES, IdentifyController, cns};
use nvme::property::{
    Capabilities, Configuration, ControllerStatus, ShutdownStatus, Version, offset,
};
use nvme::{CompletionQueueEntry, ControllerId, Nsid, QueueId, Status, SubmissionQueueEntry};
use reactor::Buffer;
use reactor::time::{self, Instant};
use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

/// Entries of the admin queue, as in Linux.
const ADMIN_QUEUE_ENTRIES: u32 = 32;
/// Interval between reads of CSTS during a wait.
const READY_POLL: Duration = Duration::from_millis(5);
/// Most bytes of one command if the controller states no limit or a larger one.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;

/// A set of live connections to one controller.
pub(crate) struct Link {
    /// Number of this link among those of one [`Controller`](super::Controller), from 1.
    pub(crate) number: u64,
    pub(crate) info: ControllerInfo,
    pub(crate) admin: Connection,
    pub(crate) io: Vec<Connection>,
    /// Most bytes of one command.
    pub(crate) transfer_bytes_max: u32,
}

impl Link {
    /// Ends all connections.
    pub(crate) fn close(&self) {
        for connection in self.io.iter().chain([&self.admin]) {
            connection.close(ConnectionEnd::ControllerReset);
        }
    }

    /// Returns whether the target is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.admin.is_local()
    }

    /// Executes an admin or Fabrics command and expects success.
    pub(crate) async fn admin(
        &self,
        command: &'static str,
        sqe: SubmissionQueueEntry,
        data: Data,
    ) -> Result<(CompletionQueueEntry, Data), Error> {
        run(&self.admin, command, sqe, data).await
    }

    /// Shuts the controller down and waits for the end of the shutdown, at most `timeout`.
    pub(super) async fn shut_down(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = time::now() + timeout;
        let configuration = Configuration::ENABLE.with_shn(1);
        set_property(&self.admin, offset::CC, u64::from(configuration.0)).await?;
        loop {
            let status =
                ControllerStatus(get_property(&self.admin, offset::CSTS, false).await? as u32);
            if status.shutdown() == ShutdownStatus::Complete {
                return Ok(());
            }
            if time::now() >= deadline {
                return Err(Error::ControllerFailed("did not shut down in time"));
            }
            time::sleep(READY_POLL).await;
        }
    }
}

pub(super) async fn run(
    connection: &Connection,
    command: &'static str,
    sqe: SubmissionQueueEntry,
    data: Data,
) -> Result<(CompletionQueueEntry, Data), Error> {
    let (outcome, data) = connection.execute(sqe, data).await;
    let cqe = check_outcome(command, outcome?, connection)?;
    Ok((cqe, data))
}

/// Measures the stages.
struct Stages {
    since: Instant,
    stages: Vec<Stage>,
}

impl Stages {
    fn done(&mut self, name: &'static str) {
        let now = time::now();
        self.stages.push(Stage { name, duration: now.since(self.since) });
        self.since = now;
    }
}

/// Creates a link.
pub(super) async fn establish(inner: &Inner, number: u64) -> Result<Rc<Link>, Error> {
    let mut stages = Stages { since: time::now(), stages: Vec::new() };
    let mut options = Cow::Borrowed(&inner.options);
    if options.concat && !inner.is_discovery {
        options = Cow::Owned(concatenate(&options).await?);
        stages.done("generating a TLS key");
    }
    let admin = open_admin(&options).await?;
    stages.done(match options.transport {
        Transport::Tcp => "TCP connection, ICReq",
        Transport::Rdma => "RDMA connection",
    });
    let result = establish_over(inner, &options, number, admin.clone(), stages).await;
    if result.is_err() {
        admin.close(ConnectionEnd::Closed);
    }
    result
}

/// Establishes the transport connection of the admin queue pair.
async fn open_admin(options: &ConnectOptions) -> Result<Connection, Error> {
    let depth = (ADMIN_QUEUE_ENTRIES - 1) as u16;
    Connection::open(options, depth, QueueId::ADMIN, ControllerId::DYNAMIC).await
}

/// Proves this host in the clear, on a connection of its own, and returns the options for
/// connecting under TLS with the generated key. Fails without a generated key.
async fn concatenate(options: &ConnectOptions) -> Result<ConnectOptions, Error> {
    let mut clear = options.clone();
    clear.dhchap_policy.concatenation = true;
    let admin = open_admin(&clear).await?;
    let generating = async {
        let (qid, entries) = (QueueId::ADMIN, ADMIN_QUEUE_ENTRIES);
        let result = connect(&admin, &clear, qid, entries, ControllerId::DYNAMIC).await?;
        proof::concatenate(&admin, &clear, result.is_authentication_required).await
    };
    let generated = generating.await;
    admin.close(ConnectionEnd::Closed);
    let tls = Some(TlsOptions::of_generated(generated?));
    // If the target had to prove itself, it has done so by now, and its knowledge of the generated
    // key proves it again.
    let dhchap = options.dhchap.clone().map(|keys| KeyPair { controller: None, ..keys });
    Ok(ConnectOptions { tls, dhchap, concat: false, ..options.clone() })
}

async fn establish_over(
    inner: &Inner,
    options: &ConnectOptions,
    number: u64,
    admin: Connection,
    mut stages: Stages,
) -> Result<Rc<Link>, Error> {
    let controller_id =
        connect_queue(&admin, options, QueueId::ADMIN, ADMIN_QUEUE_ENTRIES, ControllerId::DYNAMIC)
            .await?;
    stages.done("Connect (admin queue)");
    let capabilities = Capabilities(get_property(&admin, offset::CAP, true).await?);
    let version = Version(get_property(&admin, offset::VS, false).await? as u32);
    enable(&admin, capabilities).await?;
    stages.done("enable");
    let identify = identify_controller(&admin).await?;
    stages.done("Identify Controller");
    let has_keyed = identify.sgls.get() & IdentifyController::SGLS_KEYED != 0;
    if options.transport == Transport::Rdma && !has_keyed {
        return Err(Error::ControllerFailed("has no keyed SGLs, which RDMA needs"));
    }
    let mut io = Vec::new();
    if !inner.is_discovery {
        io = match open_io_queues(options, &admin, controller_id, capabilities, &identify).await {
            Ok(io) => io,
            Err(error) => return Err(explain_refusal(&admin, error).await),
        };
        stages.done("I/O queues");
    }
    enable_events(&admin, &identify).await?;
    let (hdr_digest, data_digest) = admin.digests();
    let transfer_bytes_max = identify
        .transfer_bytes_max(capabilities.mpsmin())
        .map_or(TRANSFER_BYTES_MAX, |bytes| bytes.min(TRANSFER_BYTES_MAX))
        as u32;
    let info = ControllerInfo {
        controller_id,
        capabilities,
        version,
        identify,
        nr_io_queues: io.len() as u16,
        queue_size: io.first().map_or(0, Connection::depth),
        hdr_digest,
        data_digest,
        stages: stages.stages,
    };
    Ok(Rc::new(Link { number, info, admin, io, transfer_bytes_max }))
}

/// Executes a Fabrics Connect and the proof that it demands. Returns the controller's identifier.
async fn connect_queue(
    connection: &Connection,
    options: &ConnectOptions,
    qid: QueueId,
    sq_entries: u32,
    controller_id: ControllerId,
) -> Result<ControllerId, Error> {
    let result = connect(connection, options, qid, sq_entries, controller_id).await?;
    if result.is_secure_channel_required {
        return Err(Error::ConcatenationNeeded);
    }
    proof::satisfy(connection, options, result.is_authentication_required).await?;
    Ok(result.cntlid)
}

/// Executes a Fabrics Connect.
async fn connect(
    connection: &Connection,
    options: &ConnectOptions,
    qid: QueueId,
    sq_entries: u32,
    controller_id: ControllerId,
) -> Result<ConnectResult, Error> {
    let keep_alive_ms = if qid.is_admin() { options.keep_alive_tmo.as_millis() as u32 } else { 0 };
    let connect = Connect { qid, sq_entries, cattr: 0, keep_alive_ms };
    let sqe = connect.encode().map_err(|source| invalid("Connect", source))?;
    let data =
        ConnectData::new(options.hostid, controller_id, &options.subsystem_nqn, &options.hostnqn);
    let payload = Buffer::copy_from(data.bytes()).freeze();
    let timeout = options.connect_timeout;
    let run = run(connection, "Connect", sqe, Data::Write(payload));
    let answer = time::timeout(timeout, run).await.map_err(|_| Error::Timeout {
        address: options.address,
        what: "Connect",
        timeout,
    })?;
    let (cqe, _) = answer.map_err(explain_connect)?;
    Ok(ConnectResult::from_dword(cqe.dword0()))
}

fn explain_connect(error: Error) -> Error {
    let Error::Refused { command, status, .. } = error else { return error };
    let hint = if status.is(Status::CONNECT_INVALID_HOST) {
        ": this host may not use the subsystem; is its hostnqn and hostid admitted?"
    } else if status.is(Status::CONNECT_INVALID_PARAMETERS) {
        ": is the subsystem's NQN right? see `tsumugi nvme discover`"
    } else if status.is(Status::CONNECT_CONTROLLER_BUSY) {
        ": the target has no controller left, or has seen too many attempts without a proof"
    } else {
        ""
    };
    Error::Refused { command, status, hint }
}

/// Returns the loss of the admin connection instead of a refusal that follows from it: a target
/// that has lost the admin connection knows no such controller, and refuses its I/O queues with Do
/// Not Retry.
async fn explain_refusal(admin: &Connection, error: Error) -> Error {
    if !matches!(error, Error::Refused { .. }) {
        return error;
    }
    match get_property(admin, offset::CSTS, false).await {
        Err(lost) if lost.is_connection_error() => lost,
        _ => error,
    }
}

fn invalid(structure: &'static str, source: nvme::Error) -> Error {
    Error::InvalidResponse { structure, fault: source }
}

async fn get_property(admin: &Connection, offset: u32, is_8_bytes: bool) -> Result<u64, Error> {
    let sqe = PropertyGet { offset, is_8_bytes }.encode();
    let (cqe, _) = run(admin, "Property Get", sqe, Data::None).await?;
    Ok(if is_8_bytes { cqe.result.get() } else { u64::from(cqe.dword0()) })
}

async fn set_property(admin: &Connection, offset: u32, value: u64) -> Result<(), Error> {
    let sqe = PropertySet { offset, is_8_bytes: false, value }.encode();
    run(admin, "Property Set", sqe, Data::None).await.map(drop)
}

/// Sets CC.EN and waits for CSTS.RDY for the time in CAP.TO.
async fn enable(admin: &Connection, capabilities: Capabilities) -> Result<(), Error> {
    let timeout = Duration::from_millis(u64::from(capabilities.ready_timeout_ms()).max(500));
    let deadline = time::now() + timeout;
    set_property(admin, offset::CC, u64::from(Configuration::ENABLE.0)).await?;
    loop {
        let status = ControllerStatus(get_property(admin, offset::CSTS, false).await? as u32);
        if status.is_fatal() {
            return Err(Error::ControllerFailed("reports a fatal state (CSTS.CFS)"));
        }
        if status.is_ready() {
            return Ok(());
        }
        if time::now() >= deadline {
            return Err(Error::ControllerFailed("did not become ready within CAP.TO"));
        }
        time::sleep(READY_POLL).await;
    }
}

async fn identify_controller(admin: &Connection) -> Result<Rc<IdentifyController>, Error> {
    let sqe =
        nvme::command::Identify { cns: cns::CONTROLLER, ..Default::default() }.encode(Nsid(0));
    let data = Data::Read(Destination::whole(Buffer::zeroed(IDENTIFY_BYTES)));
    let (_, data) = run(admin, "Identify Controller", sqe, data).await?;
    let buffer = data.into_buffer().unwrap_or_else(|| Buffer::zeroed(0));
    let identify = IdentifyController::from_prefix(&buffer)
        .map_err(|source| invalid("Identify Controller", source))?;
    Ok(Rc::new(*identify))
}

async fn open_io_queues(
    options: &ConnectOptions,
    admin: &Connection,
    controller_id: ControllerId,
    capabilities: Capabilities,
    identify: &IdentifyController,
) -> Result<Vec<Connection>, Error> {
    let wanted = u32::from(options.nr_io_queues);
    let dword11 = QueueCounts::pairs(wanted).to_dword();
    let sqe = SetFeatures { fid: fid::NUMBER_OF_QUEUES, dword11, ..Default::default() };
    let (cqe, _) =
        run(admin, "Set Features (number of queues)", sqe.encode(Nsid(0)), Data::None).await?;
    let granted = QueueCounts::from_dword(cqe.dword0());
    let count = wanted.min(granted.submission).min(granted.completion);
    // A queue of n entries holds n - 1 commands at a time.
    let entries = (u32::from(options.queue_size) + 1).min(capabilities.queue_entries_max()).max(2);
    // MAXCMD is the other bound; 0 if the controller does not state it.
    let commands_max = match identify.maxcmd.get() {
        0 => DEPTH_MAX,
        commands_max => commands_max.min(DEPTH_MAX),
    };
    let depth = (entries - 1).min(u32::from(commands_max)) as u16;
    let mut io = Vec::new();
    for qid in 1..=count as u16 {
        match open_io_queue(options, depth, entries, QueueId(qid), controller_id).await {
            Ok(connection) => {
                connection.set_in_capsule_data_bytes_max(in_capsule_data_bytes(options, identify));
                io.push(connection);
            }
            Err(error) => {
                for connection in &io {
                    connection.close(ConnectionEnd::Closed);
                }
                return Err(error);
            }
        }
    }
    Ok(io)
}

/// Returns the most data in a capsule of an I/O queue. Over RDMA, the controller has to support it
/// (SGLS), and the data follows the command without a gap (ICDOFF 0), as with Linux.
fn in_capsule_data_bytes(options: &ConnectOptions, identify: &IdentifyController) -> u32 {
    let has_offsets = identify.sgls.get() & IdentifyController::SGLS_OFFSET != 0;
    if options.transport == Transport::Rdma && !(has_offsets && identify.icdoff.get() == 0) {
        return 0;
    }
    identify.in_capsule_data_bytes().min(u64::from(u32::MAX)) as u32
}

async fn open_io_queue(
    options: &ConnectOptions,
    depth: u16,
    entries: u32,
    qid: QueueId,
    controller_id: ControllerId,
) -> Result<Connection, Error> {
    let connection = Connection::open(options, depth, qid, controller_id).await?;
    match connect_queue(&connection, options, qid, entries, controller_id).await {
        Ok(_) => Ok(connection),
        Err(error) => {
            connection.close(ConnectionEnd::Closed);
            Err(error)
        }
    }
}

/// Enables the notices that this host understands, as far as the controller supports them.
async fn enable_events(admin: &Connection, identify: &IdentifyController) -> Result<(), Error> {
    let understood = AsyncEventConfig::NAMESPACE_ATTRIBUTES
        | AsyncEventConfig::ANA_CHANGE
        | AsyncEventConfig::DISCOVERY_CHANGE;
    let wanted = identify.oaes.get() & understood;
    if wanted == 0 {
        return Ok(());
    }
    let sqe = SetFeatures { fid: fid::ASYNC_EVENT_CONFIG, dword11: wanted, ..Default::default() };
    match run(admin, "Set Features (events)", sqe.encode(Nsid(0)), Data::None).await {
        // Events are optional for this host: a controller may announce them and refuse to enable
        // them.
        Ok(_) | Err(Error::Refused { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
