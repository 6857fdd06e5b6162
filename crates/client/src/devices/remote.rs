//! A device over NVMe/TCP or NVMe/RDMA.

use crate::session::Session;
use auth::{KeyPair, Policy, TlsKey};
use block::Device;
use host::{ConnectOptions, Controller, Namespace, TlsOptions};
use nvme::{Nqn, Nsid};
use protocol::space::{DeviceInfo, Transport};
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

/// Sets how the host proves that it has the key of its admission: by TLS, or over RDMA, which has no
/// TLS, by a proof on each queue pair. Over RDMA the target has to prove the same.
fn use_key(options: &mut ConnectOptions, key: DataKey) -> Result<(), Obstacle> {
    if options.transport == host::Transport::Tcp {
        options.tls = Some(tls(key, &options.hostnqn, &options.subsystem_nqn)?);
        return Ok(());
    }
    let key = TlsKey::new(None, key.into_bytes()).map_err(|error| error.to_string())?;
    options.dhchap = Some(KeyPair::of_admission(&key));
    options.dhchap_policy = Policy::of_admission();
    Ok(())
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
    /// The key that came with the admission, for TLS or a proof; without one the host shows only its
    /// identifier.
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
    /// Connects with the key that came with the admission: under TLS over TCP, with a proof over RDMA.
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
        let mut options =
            ConnectOptions::new(address, nqn).with_host(nvme::HostId(host.0), hostnqn);
        options.transport = match info.address.transport {
            Transport::Tcp => host::Transport::Tcp,
            Transport::Rdma => host::Transport::Rdma,
        };
        if let Some(key) = key {
            use_key(&mut options, key)?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::data_key::DATA_KEY_BYTES;

    /// Goal: the key of an admission is used for TLS over TCP. Over RDMA, which has none, the host
    /// proves the key, and demands the same of the target; the options are valid for the transport.
    #[test]
    fn a_key_is_used_on_each_transport() {
        for transport in [host::Transport::Tcp, host::Transport::Rdma] {
            let is_rdma = transport == host::Transport::Rdma;
            let subsystem = Nqn::from_uuid([2; 16]);
            let address = SocketAddr::from(([10, 0, 0, 1], 4420));
            let mut options = ConnectOptions::new(address, subsystem);
            options.transport = transport;
            let key = DataKey::new(vec![3; DATA_KEY_BYTES].into()).unwrap();
            use_key(&mut options, key).unwrap();
            options.check().unwrap();
            assert_eq!(options.tls.is_some(), !is_rdma);
            let demands = options.dhchap.as_ref().and_then(|keys| keys.controller.as_ref());
            assert_eq!(demands.is_some(), is_rdma);
        }
    }
}
