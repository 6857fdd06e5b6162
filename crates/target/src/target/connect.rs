//! Connect (base 6.3): chooses the subsystem and controller that a new connection becomes a queue
//! pair of.

use super::{Proof, Target};
use crate::admission::Lane;
use crate::controller::{Association, Controller};
use crate::signal::Signal;
use crate::subsystem::Subsystem;
use nvme::fabrics::{Connect, ConnectData, ConnectInvalid, ConnectResult};
use nvme::log_page::transport_type;
use nvme::{ControllerId, HostId, Nqn, Status, SubmissionQueueEntry};
use reactor::time::Instant;
use std::net::SocketAddr;
use std::sync::Arc;

/// Status and dword 0 of a Connect that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectFailure {
    /// The status.
    pub status: Status,
    /// Position of the invalid parameter, else 0.
    pub dword0: u32,
}

impl From<Status> for ConnectFailure {
    fn from(status: Status) -> Self {
        Self { status: status.do_not_retry(), dword0: 0 }
    }
}

impl From<ConnectInvalid> for ConnectFailure {
    fn from(invalid: ConnectInvalid) -> Self {
        let status = Status::CONNECT_INVALID_PARAMETERS.do_not_retry();
        Self { status, dword0: invalid.to_dword() }
    }
}

/// Properties of the connection that carries a Connect.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// Raised when the connection has to end or look for events.
    pub signal: &'a Arc<Signal>,
    /// The connection's local address, at which this host reaches the target.
    pub local_address: SocketAddr,
    /// The host's address.
    pub peer_address: SocketAddr,
    /// The identity of the connection's TLS key.
    pub tls_identity: Option<&'a [u8]>,
    /// The transport of the connection.
    pub transport: Transport,
}

/// A transport of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA.
    Rdma,
}

impl Transport {
    /// Returns the transport type (TRTYPE).
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tcp => transport_type::TCP,
            Self::Rdma => transport_type::RDMA,
        }
    }
}

/// An I/O queue pair's membership in its controller; dropping it removes the queue pair.
#[derive(Debug)]
pub struct IoQueue {
    association: Arc<Association>,
    qid: u16,
    signal: Arc<Signal>,
}

impl IoQueue {
    /// Returns the state that all queue pairs of the controller share.
    pub fn association(&self) -> &Arc<Association> {
        &self.association
    }

    /// Returns the queue's identifier.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Returns the signal that wakes the queue pair's task.
    pub(crate) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        self.association.detach(self.qid, &self.signal);
    }
}

/// The role of a connection after its Connect.
#[derive(Debug)]
pub enum Attached {
    /// The admin queue pair of a new controller.
    Admin(Box<Controller>),
    /// An I/O queue pair of a controller.
    Io(IoQueue),
}

/// A Connect that succeeded.
#[derive(Debug)]
pub struct Connected {
    /// The role of the connection. If a proof is due, the connection gets this role after the
    /// proof.
    pub attached: Attached,
    /// Its lane through the host's admission.
    pub lane: Lane,
    /// The command.
    pub connect: Connect,
    /// The command's result.
    pub result: ConnectResult,
    /// The proof that the host owes.
    pub(crate) proof: Option<Proof>,
}

/// The parameters of a Connect that are well formed.
pub(super) struct Wanted {
    pub(super) connect: Connect,
    pub(super) host: HostId,
    pub(super) host_name: Option<Nqn>,
    pub(super) subsystem_name: Nqn,
    controller: ControllerId,
}

impl Target {
    /// Executes a Connect on a connection.
    ///
    /// # Errors
    /// The status that the Connect ends with.
    pub fn connect(
        self: &Arc<Self>,
        sqe: &SubmissionQueueEntry,
        data: &[u8],
        link: &Link<'_>,
        now: Instant,
    ) -> Result<Connected, ConnectFailure> {
        let wanted = Wanted::decode(sqe, data)?;
        self.check_identity(&wanted, link.tls_identity)?;
        let subsystem = self.find(&wanted.subsystem_name)?;
        let is_admin = wanted.connect.qid.is_admin();
        let entries_max = if is_admin {
            self.limits.admin_queue_entries_max
        } else {
            self.limits.queue_entries_max
        };
        // The discovery log's ASQSZ allows a larger admin queue, because ASQSZ is at least 32.
        if wanted.connect.sq_entries > u32::from(entries_max.max(if is_admin { 32 } else { 2 })) {
            return Err(ConnectInvalid::SQSIZE.into());
        }
        let lane = self.admit(&wanted, &subsystem, link.signal)?;
        let proof = self.proof_of(&wanted, link.tls_identity, link.peer_address, now)?;
        let attached = if is_admin {
            Attached::Admin(Box::new(self.new_controller(&wanted, &subsystem, link, now)?))
        } else {
            Attached::Io(self.join_controller(&wanted, &subsystem, link)?)
        };
        // A proof that is required only now ends the host's controllers, perhaps before this one came to them.
        if proof.is_none() && self.required_proof(&wanted, link.tls_identity).is_some() {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        let association = match &attached {
            Attached::Admin(controller) => controller.association(),
            Attached::Io(queue) => queue.association(),
        };
        let result = ConnectResult {
            cntlid: association.id(),
            is_authentication_required: proof.is_some(),
            is_secure_channel_required: proof.as_ref().is_some_and(|it| it.is_concatenated),
        };
        Ok(Connected { attached, lane, connect: wanted.connect, result, proof })
    }

    pub(super) fn find(&self, name: &Nqn) -> Result<Arc<Subsystem>, ConnectFailure> {
        if name.is_discovery() {
            return Ok(Arc::clone(&self.discovery));
        }
        let registry = self.registry();
        registry.subsystems.get(name).cloned().ok_or_else(|| ConnectInvalid::SUBNQN.into())
    }

    fn admit(
        &self,
        wanted: &Wanted,
        subsystem: &Arc<Subsystem>,
        signal: &Arc<Signal>,
    ) -> Result<Lane, ConnectFailure> {
        let refused = || {
            for namespace in subsystem.namespaces() {
                namespace.count_refused();
            }
            ConnectFailure::from(Status::CONNECT_INVALID_HOST)
        };
        if !subsystem.allows(wanted.host_name.as_ref()) {
            self.admissions.note_refused();
            return Err(refused());
        }
        self.admissions
            .open_lane(wanted.host, wanted.host_name.as_ref(), signal)
            .map_err(|_| refused())
    }

    fn new_controller(
        self: &Arc<Self>,
        wanted: &Wanted,
        subsystem: &Arc<Subsystem>,
        link: &Link<'_>,
        now: Instant,
    ) -> Result<Controller, ConnectFailure> {
        // Only the dynamic model (base 3.1.2): the host cannot choose.
        if !matches!(wanted.controller, ControllerId::DYNAMIC) {
            return Err(ConnectInvalid::CNTLID.into());
        }
        let mut registry = self.registry();
        self.check_present(&registry, wanted, subsystem)?;
        let (first, last) =
            (*self.limits.controller_ids.start(), *self.limits.controller_ids.end());
        let ids = usize::from(last - first) + 1;
        if registry.controllers.len() >= self.limits.controllers_max.min(ids) {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        let mut id = registry.next_id;
        while id < first || id > last || registry.controllers.contains_key(&id.into()) {
            id = if id < first || id >= last { first } else { id + 1 };
        }
        registry.next_id = id + 1;
        let host = (wanted.host, wanted.host_name.clone());
        let mut controller = Controller::new(self, ControllerId(id), host, subsystem, link);
        registry.controllers.insert(ControllerId(id), Arc::clone(controller.association()));
        drop(registry);
        if let Err(status) = controller.set_keep_alive(wanted.connect.keep_alive_ms, now) {
            debug_assert_eq!(status, Status::KEEP_ALIVE_INVALID);
            return Err(ConnectInvalid::KATO.into());
        }
        Ok(controller)
    }

    fn join_controller(
        &self,
        wanted: &Wanted,
        subsystem: &Arc<Subsystem>,
        link: &Link<'_>,
    ) -> Result<IoQueue, ConnectFailure> {
        let association = self.registry().controllers.get(&wanted.controller).cloned();
        let association = association.ok_or(ConnectFailure::from(ConnectInvalid::CNTLID))?;
        // All queue pairs of a controller have its transport (base 3.3.2).
        if association.transport() != link.transport {
            return Err(ConnectInvalid::CNTLID.into());
        }
        if !Arc::ptr_eq(association.subsystem(), subsystem) || subsystem.is_discovery() {
            return Err(ConnectInvalid::SUBNQN.into());
        }
        if association.host() != wanted.host {
            return Err(ConnectInvalid::HOSTID.into());
        }
        if association.host_name() != wanted.host_name.as_ref() {
            return Err(ConnectInvalid::HOSTNQN.into());
        }
        let qid = wanted.connect.qid.get();
        if qid > self.limits.io_queues_max {
            return Err(ConnectInvalid::QID.into());
        }
        association.attach(qid, link.signal)?;
        Ok(IoQueue { association, qid, signal: Arc::clone(link.signal) })
    }
}

impl Wanted {
    pub(super) fn decode(sqe: &SubmissionQueueEntry, data: &[u8]) -> Result<Self, ConnectFailure> {
        let connect = Connect::decode(sqe).map_err(|error| match error {
            nvme::Error::InvalidField { field: "recfmt", .. } => {
                ConnectFailure::from(Status::CONNECT_INCOMPATIBLE_FORMAT)
            }
            _ => ConnectInvalid::SQSIZE.into(),
        })?;
        let data = ConnectData::from_prefix(data)
            .map_err(|_| ConnectFailure::from(Status::SGL_DATA_LENGTH_INVALID))?;
        Ok(Self {
            connect,
            host: data.host_id(),
            host_name: data
                .host_nqn()
                .map_err(|_| ConnectFailure::from(ConnectInvalid::HOSTNQN))?,
            subsystem_name: data
                .subsystem_nqn()
                .map_err(|_| ConnectFailure::from(ConnectInvalid::SUBNQN))?,
            controller: data.controller_id(),
        })
    }
}
