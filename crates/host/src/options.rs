//! How to connect: the options of a host, named as in libnvme where it has them.

use crate::error::Error;
use crate::queue_pair::DEPTH_MAX;
use auth::{Derivation, IdentityVersion, KeyPair, Policy, TlsKey, TlsPsk};
use nvme::{HostId, Nqn};
use reactor::SocketOptions;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What to do with a write that was under way when its connection ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterruptedWrites {
    /// Send it again on the next connection, as the Linux host does. It is right whenever no two
    /// overlapping writes are under way at once and the target ends an old connection's I/O before
    /// it lets the host connect anew (ours does).
    #[default]
    Resend,
    /// Fail it with [`Error::WriteInterrupted`]: the caller sorts out what happened.
    Fail,
}

/// TLS for connections to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The key that host and target share (`tls_key`).
    pub key: TlsKey,
    /// Which derivation is meant where a PSK's identity does not show it.
    pub derivation: Derivation,
    /// The only identity to offer; [`None`] offers all that the key has for host and subsystem. Targets with
    /// `GnuTLS` look at the first alone.
    pub identity: Option<String>,
    /// A target that refuses the key ends the controller, as one does that refuses the host: the key may have ended
    /// with an admission. Else connecting is tried on, as the target may have been given the key later.
    pub is_refusal_final: bool,
}

impl TlsOptions {
    /// The options for the key of an admission, of which a target knows the newest identity alone.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if no identity can be made of the names.
    pub fn of_admission(key: TlsKey, host: &Nqn, subsystem: &Nqn) -> Result<Self, Error> {
        if host.as_str().contains(' ') {
            let why = "the host's name has a space, which separates names in an identity";
            return Err(Error::InvalidOption { option: "hostnqn", why });
        }
        let derivation = Derivation::Standard;
        let psk = key.psk(host, subsystem, IdentityVersion::V1, derivation).map_err(|_| {
            Error::InvalidOption {
                option: "tls_key",
                why: "host and subsystem have too long names",
            }
        })?;
        Ok(Self { key, derivation, identity: Some(psk.identity), is_refusal_final: true })
    }

    /// The options for a key that this host and the target have generated. Another attempt generates another.
    pub(crate) fn of_generated(key: TlsKey) -> Self {
        Self { key, derivation: Derivation::Standard, identity: None, is_refusal_final: false }
    }

    /// The PSKs to offer for a subsystem, best first.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the key has no such identity.
    pub(crate) fn psks(&self, host: &Nqn, subsystem: &Nqn) -> Result<Vec<TlsPsk>, Error> {
        let mut psks = self.key.psks(host, subsystem, self.derivation);
        if let Some(wanted) = &self.identity {
            psks.retain(|psk| psk.identity == *wanted);
        }
        if psks.is_empty() {
            let why = "the key has no such identity for this host and subsystem: see check-tls-key";
            return Err(Error::InvalidOption { option: "tls_key_identity", why });
        }
        Ok(psks)
    }
}

/// Options of a connection to a subsystem.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Address and port of the target (traddr, trsvcid).
    pub address: SocketAddr,
    /// The subsystem to connect to (nqn).
    pub subsystem_nqn: Nqn,
    /// Name of this host (hostnqn).
    pub hostnqn: Nqn,
    /// Identifier of this host (hostid).
    pub hostid: HostId,
    /// I/O queue pairs of the controller, all used by the thread that connects; the target may
    /// grant fewer.
    pub nr_io_queues: u16,
    /// Commands that may be outstanding on an I/O queue pair; the target may grant fewer.
    pub queue_size: u16,
    /// Keep-alive timeout; zero is off. Sent twice as often.
    pub keep_alive_tmo: Duration,
    /// Longest pause between attempts to reconnect; the first attempt is made at once, then the
    /// pause doubles from 50 ms.
    pub reconnect_delay: Duration,
    /// How long to try to reconnect before the controller is given up; [`None`] is for ever.
    pub ctrl_loss_tmo: Option<Duration>,
    /// The longest that a request may take in all, reconnecting included; [`None`]: as long as the
    /// controller is not given up (libnvme: `fast_io_fail_tmo`).
    pub fast_io_fail_tmo: Option<Duration>,
    /// The longest that a command may stay unanswered; then the connection is ended.
    pub io_timeout: Duration,
    /// The longest that connecting may take, per queue pair.
    pub connect_timeout: Duration,
    /// Ask for header digests.
    pub hdr_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// The host's secret, for targets that ask for it, and the controller's, whose proof is demanded then
    /// (`dhchap_secret`, `dhchap_ctrl_secret`).
    pub dhchap: Option<KeyPair>,
    /// Hash functions and groups that are offered for authentication.
    pub dhchap_policy: Policy,
    /// Connect under TLS (`tls`, `tls_key`); [`None`] connects in the clear.
    pub tls: Option<TlsOptions>,
    /// Prove this host in the clear, generate a TLS key by that and connect again under TLS with it: secure channel
    /// concatenation (`concat`). Discovery stays in the clear.
    pub concat: bool,
    /// What becomes of writes whose connection ended.
    pub interrupted_writes: InterruptedWrites,
    /// Network namespace to open sockets in, e.g. `/run/netns/node1`.
    pub network_namespace: Option<PathBuf>,
    /// Socket buffer size in bytes, each way; [`None`] leaves it to the kernel.
    pub socket_buffer_bytes: Option<usize>,
}

impl ConnectOptions {
    /// The defaults of libnvme, but for the keep-alive of a controller that is never idle for long,
    /// and a random host.
    pub fn new(address: SocketAddr, subsystem_nqn: Nqn) -> Self {
        let hostid = random_host_id();
        Self {
            address,
            subsystem_nqn,
            hostnqn: Nqn::from_uuid(hostid.0),
            hostid,
            nr_io_queues: 1,
            queue_size: 128,
            keep_alive_tmo: Duration::from_secs(5),
            reconnect_delay: Duration::from_secs(10),
            ctrl_loss_tmo: Some(Duration::from_mins(10)),
            fast_io_fail_tmo: None,
            io_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            hdr_digest: false,
            data_digest: false,
            dhchap: None,
            dhchap_policy: Policy::default(),
            tls: None,
            concat: false,
            interrupted_writes: InterruptedWrites::Resend,
            network_namespace: None,
            socket_buffer_bytes: None,
        }
    }

    /// Names the host; the identifier is taken for its name too.
    #[must_use]
    pub fn with_host(mut self, hostid: HostId, hostnqn: Nqn) -> Self {
        self.hostid = hostid;
        self.hostnqn = hostnqn;
        self
    }

    /// Checks what the types do not.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |option, why| Err(Error::InvalidOption { option, why });
        if self.concat && self.tls.is_some() {
            return wrong("concat", "it generates the TLS key, so no other can be given (tls_key)");
        }
        if self.concat && self.dhchap.is_none() {
            return wrong("concat", "it needs a secret to authenticate with (dhchap_secret)");
        }
        if self.queue_size == 0 || self.queue_size > DEPTH_MAX {
            return wrong("queue_size", "it has to be between 1 and 4095");
        }
        if self.nr_io_queues == 0 || self.nr_io_queues > 128 {
            return wrong("nr_io_queues", "it has to be between 1 and 128");
        }
        if self.hostid.is_zero() {
            return wrong("hostid", "it may not be zero");
        }
        if self.keep_alive_tmo.as_millis() > u128::from(u32::MAX) {
            return wrong("keep_alive_tmo", "it has to be below 49 days");
        }
        if self.io_timeout < Duration::from_millis(10) {
            return wrong("io_timeout", "it has to be at least 10 ms");
        }
        Ok(())
    }

    /// How long a command may stay unanswered.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.fast_io_fail_tmo.map_or(self.io_timeout, |total| total.min(self.io_timeout))
    }

    pub(crate) fn socket_options(&self) -> SocketOptions {
        SocketOptions {
            network_namespace: self.network_namespace.clone(),
            nodelay: true,
            send_buffer_bytes: self.socket_buffer_bytes,
            receive_buffer_bytes: self.socket_buffer_bytes,
        }
    }
}

/// A random (version 4) identifier.
fn random_host_id() -> HostId {
    let mut bytes = [0; 16];
    reactor::random::fill(&mut bytes);
    HostId(uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes())
}
