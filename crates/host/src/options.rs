//! The options of a host's connections, named as in libnvme if it has them.

use crate::error::Error;
use crate::queue_pair::DEPTH_MAX;
use auth::{Derivation, IdentityVersion, KeyPair, Policy, TlsKey, TlsPsk};
use nvme::{HostId, Nqn};
use reactor::SocketOptions;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The transport of a controller's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA, by way of rdma-core.
    Rdma,
}

/// Treatment of a write that was under way when its connection ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterruptedWrites {
    /// Send it again on the next connection, as the Linux host does. This is correct if no two
    /// overlapping writes are under way at once, and if the target ends an old connection's I/O
    /// before it lets the host connect again (ours does).
    #[default]
    Resend,
    /// Fail it with [`Error::WriteInterrupted`]; the caller decides what to do.
    Fail,
}

/// TLS for connections to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The key that host and target share (`tls_key`).
    pub key: TlsKey,
    /// The derivation to use if a PSK's identity does not show it.
    pub derivation: Derivation,
    /// The only identity to offer; [`None`] offers all identities of the key for host and
    /// subsystem. Targets with `GnuTLS` evaluate only the first.
    pub identity: Option<String>,
    /// Whether the host gives the controller up when the target refuses the key, because the key
    /// may have ended with an admission. Otherwise it keeps trying, because the target may get the
    /// key later.
    pub is_refusal_final: bool,
}

impl TlsOptions {
    /// Creates the options for the key of an admission. A target knows only the newest identity of
    /// such a key.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the names cannot be part of an identity.
    pub fn of_admission(key: TlsKey, host: &Nqn, subsystem: &Nqn) -> Result<Self, Error> {
        if host.as_str().contains(' ') {
            let why = "the host's name has a space, which separates names in an identity";
            return Err(Error::InvalidOption { option: "hostnqn", why });
        }
        let derivation = Derivation::Standard;
        let psk = key.psk(host, subsystem, IdentityVersion::V1, derivation).map_err(|_| {
            Error::InvalidOption {
                option: "tls_key",
                why: "the names of host and subsystem are too long",
            }
        })?;
        Ok(Self { key, derivation, identity: Some(psk.identity), is_refusal_final: true })
    }

    /// Creates the options for a key that this host and the target have generated. Each attempt
    /// generates a new key.
    pub(crate) fn of_generated(key: TlsKey) -> Self {
        Self { key, derivation: Derivation::Standard, identity: None, is_refusal_final: false }
    }

    /// Returns the PSKs to offer for a subsystem, best first.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the key does not have the requested identity.
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
    /// Transport of the connections (trtype).
    pub transport: Transport,
    /// Address and port of the target (traddr, trsvcid).
    pub address: SocketAddr,
    /// The subsystem to connect to (nqn).
    pub subsystem_nqn: Nqn,
    /// Name of this host (hostnqn).
    pub hostnqn: Nqn,
    /// Identifier of this host (hostid).
    pub hostid: HostId,
    /// Number of I/O queue pairs of the controller, all used by the connecting thread. The target
    /// may grant fewer.
    pub nr_io_queues: u16,
    /// Maximum number of outstanding commands on an I/O queue pair. The target may grant fewer.
    pub queue_size: u16,
    /// Keep-alive timeout; zero turns it off. The host sends Keep Alive twice per timeout.
    pub keep_alive_tmo: Duration,
    /// Longest pause between attempts to reconnect. The first attempt follows at once, then the
    /// pause doubles from 50 ms.
    pub reconnect_delay: Duration,
    /// Time after which the host gives up reconnecting to the controller; [`None`] means never.
    pub ctrl_loss_tmo: Option<Duration>,
    /// Longest total time of a request, including reconnects; [`None`] means until the controller
    /// is given up (libnvme: `fast_io_fail_tmo`).
    pub fast_io_fail_tmo: Option<Duration>,
    /// Longest time that a command may stay unanswered; after it the connection is ended.
    pub io_timeout: Duration,
    /// Longest time for connecting a queue pair.
    pub connect_timeout: Duration,
    /// Whether to request header digests.
    pub hdr_digest: bool,
    /// Whether to request data digests.
    pub data_digest: bool,
    /// The host's secret, for targets that demand its proof. With the controller's secret, the host
    /// demands the controller's proof too (`dhchap_secret`, `dhchap_ctrl_secret`).
    pub dhchap: Option<KeyPair>,
    /// Hash functions and groups to offer for authentication.
    pub dhchap_policy: Policy,
    /// Connect under TLS (`tls`, `tls_key`); [`None`] connects in the clear.
    pub tls: Option<TlsOptions>,
    /// Prove this host in the clear, generate a TLS key in that proof, and connect again under TLS
    /// with the key: secure channel concatenation (`concat`). Discovery stays in the clear.
    pub concat: bool,
    /// Treatment of writes whose connection has ended.
    pub interrupted_writes: InterruptedWrites,
    /// Network namespace for sockets, for example `/run/netns/node1`.
    pub network_namespace: Option<PathBuf>,
    /// Size of the socket's buffers in bytes, in each direction; [`None`] leaves it to the kernel.
    pub socket_buffer_bytes: Option<usize>,
}

impl ConnectOptions {
    /// Creates options with the defaults of libnvme, except for the keep-alive, which suits a
    /// controller that is never idle for long, and a random host.
    pub fn new(address: SocketAddr, subsystem_nqn: Nqn) -> Self {
        let hostid = random_host_id();
        Self {
            transport: Transport::Tcp,
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

    /// Sets the host's identifier and name.
    #[must_use]
    pub fn with_host(mut self, hostid: HostId, hostnqn: Nqn) -> Self {
        self.hostid = hostid;
        self.hostnqn = hostnqn;
        self
    }

    /// Checks the values beyond their types.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |option, why| Err(Error::InvalidOption { option, why });
        if self.transport == Transport::Rdma
            && let Some((option, why)) = self.not_over_rdma()
        {
            return wrong(option, why);
        }
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

    /// Returns an option that connections over RDMA cannot have, and the reason.
    fn not_over_rdma(&self) -> Option<(&'static str, &'static str)> {
        let options = [
            ("tls_key", self.tls.is_some(), "there is no TLS over RDMA"),
            ("concat", self.concat, "there is no TLS over RDMA"),
            ("hdr_digest", self.hdr_digest, "there are no digests over RDMA: the adapter checks"),
            ("data_digest", self.data_digest, "there are no digests over RDMA: the adapter checks"),
            (
                "network_namespace",
                self.network_namespace.is_some(),
                "connections over RDMA belong to the process's own network namespace",
            ),
        ];
        options.into_iter().find(|it| it.1).map(|(option, _, why)| (option, why))
    }

    /// Returns the time that a command may stay unanswered.
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

/// Returns a random (version 4) identifier.
fn random_host_id() -> HostId {
    let mut bytes = [0; 16];
    reactor::random::fill(&mut bytes);
    HostId(uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes())
}
