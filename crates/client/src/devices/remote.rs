//! A device over NVMe/TCP.

use crate::session::Session;
use auth::TlsKey;
use block::Device;
use host::{ConnectOptions, Controller, Namespace, TlsOptions};
use nvme::{Nqn, Nsid};
use protocol::space::DeviceInfo;
use protocol::{DataKey, HostId};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// I/O queue pairs to a device. Only one thread uses them, so one is enough.
const QUEUE_PAIRS: u16 = 1;

/// Returns the name under which a session connects to a namespace. Each namespace has its own,
/// because a new controller makes the target end earlier controllers of the same host and name.
fn host_name(host: HostId, nsid: Nsid) -> Result<Nqn, nvme::Error> {
    Nqn::new(&format!("{}:{}", Nqn::from_uuid(host.0).as_str(), nsid.0))
}

/// Returns the options of TLS with the key of an admission.
fn tls(key: DataKey, hostnqn: &Nqn, subnqn: &Nqn) -> Result<TlsOptions, Obstacle> {
    let key = TlsKey::new(None, key.into_bytes()).map_err(|error| error.to_string())?;
    Ok(TlsOptions::of_admission(key, hostnqn, subnqn)?)
}

/// Why there is no connection to a device's target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Obstacle {
    /// The service's description of the device makes no sense.
    #[error("{0}")]
    Description(String),
    /// The host could not connect.
    #[error(transparent)]
    Host(#[from] host::Error),
}

impl Obstacle {
    /// Returns whether the target did not answer.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Host(error) if super::contact::is_silence(error))
    }

    /// Returns whether the connection broke while it was made: the target was there.
    pub(crate) fn is_break(&self) -> bool {
        match self {
            Self::Description(_) => false,
            Self::Host(host::Error::Connect { error, .. }) => {
                error.kind() == ErrorKind::ConnectionReset
            }
            // The key was admitted a moment ago: the bytes were changed on the way, or the
            // admission has ended.
            Self::Host(error) => {
                matches!(error, host::Error::ConnectionLost(_) | host::Error::SecureChannel(_))
            }
        }
    }
}

impl From<String> for Obstacle {
    fn from(text: String) -> Obstacle {
        Obstacle::Description(text)
    }
}

/// How a session reaches a target over the network.
#[derive(Clone)]
pub(crate) struct RemoteAccess {
    /// The host that the session is to targets.
    pub(crate) host: HostId,
    /// The key that came with the admission; without one the connection is in the clear.
    pub(crate) key: Option<DataKey>,
    /// How long connecting a queue pair may take.
    pub(crate) patience: Duration,
}

/// A connection to a device's target.
pub(crate) struct Remote {
    controller: Controller,
    device: Rc<dyn Device>,
}

impl Remote {
    /// Connects: under TLS with the key that came with the admission, in the clear without a key.
    ///
    /// # Errors
    /// What failed.
    pub(crate) async fn connect(
        info: &DeviceInfo,
        access: &RemoteAccess,
        session: &Session,
    ) -> Result<Remote, Obstacle> {
        let RemoteAccess { host, key, patience } = access.clone();
        let traddr = &info.address.traddr;
        let address: SocketAddr =
            traddr.parse().map_err(|_| format!("{traddr:?} is no address and port"))?;
        let nqn: Nqn = info.address.subnqn.parse().map_err(|error| format!("{error}"))?;
        let nsid = Nsid(info.address.nsid);
        let hostnqn = host_name(host, nsid).map_err(|error| error.to_string())?;
        let tls = key.map(|key| tls(key, &hostnqn, &nqn)).transpose()?;
        let mut options =
            ConnectOptions::new(address, nqn).with_host(nvme::HostId(host.0), hostnqn);
        options.tls = tls;
        options.nr_io_queues = QUEUE_PAIRS;
        // An early error is better than waiting for a node that may never come back.
        options.fast_io_fail_tmo = Some(session.times().session_deadline);
        options.io_timeout = session.times().session_deadline;
        options.connect_timeout = patience;
        options.keep_alive_tmo = session.times().target_deadline;
        options.reconnect_delay = session.times().heartbeat / 2;
        options.network_namespace.clone_from(&session.sockets().network_namespace);
        let controller = Controller::connect(options).await?;
        let namespace = Namespace::open(&controller, nsid).await?;
        Ok(Remote { controller, device: Rc::new(namespace) })
    }

    /// Returns the device to send commands to.
    pub(super) fn device(&self) -> Rc<dyn Device> {
        Rc::clone(&self.device)
    }

    /// Disconnects in order.
    pub(super) async fn close(self) {
        if let Err(error) = self.controller.disconnect().await {
            tracing::debug!(%error, "a controller was not shut down in order");
        }
    }
}
