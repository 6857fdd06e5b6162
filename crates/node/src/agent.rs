//! The agent: the target's line to the metadata service.
//!
//! It registers the node's devices, carries out admissions and fences, and tells what the target has
//! counted. While it has no contact, admissions lapse by the target's own clock; nothing needs to be
//! done for that.

use protocol::DeviceId;
use protocol::agent::{Answer, Call, DeviceCounts, Push, PushAnswer};
use protocol::auth::Secret;
use protocol::space::DeviceInfo;
use protocol::times::Times;
use ring::SocketOptions;
use ring::time::sleep;
use rpc::{Connector, Limits, Reply};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use target::{Admissions, Namespace};

type Connection = rpc::Connection<Connector<rpc::Agent>>;

/// How often counts are told.
const COUNTS_PERIOD: Duration = Duration::from_millis(500);

/// Pause before connecting again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// What the agent needs to know.
pub(crate) struct AgentConfig {
    pub(crate) meta: SocketAddr,
    pub(crate) sockets: SocketOptions,
    pub(crate) secret: Secret,
    pub(crate) times: Times,
    pub(crate) node: String,
    pub(crate) devices: Vec<DeviceInfo>,
    pub(crate) namespaces: Vec<Arc<Namespace>>,
    pub(crate) admissions: Arc<Admissions>,
}

/// The agent.
pub(crate) struct Agent {
    config: AgentConfig,
    ids: RefCell<Vec<DeviceId>>,
}

struct Pushes {
    admissions: Arc<Admissions>,
}

impl rpc::Handler<Connector<rpc::Agent>> for Pushes {
    fn called(&self, push: Push, reply: Reply<Connector<rpc::Agent>>) {
        let admissions = Arc::clone(&self.admissions);
        match push {
            Push::Admit { host, epoch, lapse_ms } => {
                let lapse = Duration::from_millis(u64::from(lapse_ms));
                ring::spawn(async move {
                    let host = nvme::HostId(host.0);
                    let admitted = admissions.admit(host, epoch.0, lapse).await;
                    let answer = match admitted {
                        Ok(()) => PushAnswer::Done,
                        Err(_) => PushAnswer::Fenced,
                    };
                    answered(reply, answer);
                });
            }
            Push::Renew { lapse_ms } => {
                admissions.renew(Duration::from_millis(u64::from(lapse_ms)));
                answered(reply, PushAnswer::Done);
            }
            Push::Fence { host, epoch } => {
                let fenced = admissions.fence(nvme::HostId(host.0), epoch.0);
                ring::spawn(async move {
                    fenced.await;
                    answered(reply, PushAnswer::Fenced);
                });
            }
        }
    }
}

fn answered(reply: Reply<Connector<rpc::Agent>>, answer: PushAnswer) {
    if let Err((_, error)) = reply.send(&answer) {
        tracing::error!(%error, "an answer to the metadata service could not be sent");
    }
}

impl Agent {
    /// Connects and registers.
    ///
    /// # Errors
    /// In words what stood in the way.
    pub(crate) async fn start(config: AgentConfig) -> Result<(Rc<Agent>, Connection), String> {
        let agent = Rc::new(Agent { config, ids: RefCell::default() });
        let connection = agent.connect().await?;
        Ok((agent, connection))
    }

    async fn connect(&self) -> Result<Connection, String> {
        let config = &self.config;
        let pushes = Rc::new(Pushes { admissions: Arc::clone(&config.admissions) });
        let connection = Connection::connect(
            config.meta,
            &config.sockets,
            &config.secret,
            Limits::default(),
            pushes,
        )
        .await
        .map_err(|error| error.to_string())?;
        let call = Call::Register { node: config.node.clone(), devices: config.devices.clone() };
        let answer = connection.call(&call, Some(config.times.request_deadline)).await;
        match answer.map_err(|error| error.to_string())? {
            Answer::Registered(ids) if ids.len() == config.devices.len() => {
                *self.ids.borrow_mut() = ids;
                Ok(connection)
            }
            Answer::Refused(why) => Err(why),
            other => Err(format!("{other:?} is no answer to a registration")),
        }
    }

    /// Keeps in contact for ever.
    pub(crate) async fn keep(self: Rc<Self>, first: Connection) {
        let mut connection = first;
        loop {
            self.tell_counts(&connection).await;
            tracing::warn!("lost the connection to the metadata service");
            connection = loop {
                sleep(RECONNECT_PAUSE).await;
                match self.connect().await {
                    Ok(connection) => break connection,
                    Err(error) => {
                        tracing::warn!(error, "no contact with the metadata service, trying on");
                    }
                }
            };
        }
    }

    /// Tells counts until the connection is lost: at once when they change, else as a heartbeat.
    async fn tell_counts(&self, connection: &Connection) {
        let mut told = Vec::new();
        let mut silent = Duration::ZERO;
        while connection.closed_reason().is_none() {
            let counts = self.counts();
            if counts != told || silent >= self.config.times.heartbeat {
                let call = Call::Heartbeat(counts.clone());
                let answer = connection.call(&call, Some(self.config.times.session_deadline)).await;
                if let Err(error) = answer {
                    connection.close(&error.to_string());
                    return;
                }
                told = counts;
                silent = Duration::ZERO;
            }
            sleep(COUNTS_PERIOD).await;
            silent += COUNTS_PERIOD;
        }
    }

    fn counts(&self) -> Vec<DeviceCounts> {
        let ids = self.ids.borrow();
        let counts = ids.iter().zip(&self.config.namespaces).map(|(&device, namespace)| {
            let counts = namespace.counts();
            DeviceCounts {
                device,
                read_local_bytes: counts.read_local_bytes,
                read_remote_bytes: counts.read_remote_bytes,
                written_local_bytes: counts.written_local_bytes,
                written_remote_bytes: counts.written_remote_bytes,
                commands: counts.commands,
                refused: counts.refused,
            }
        });
        counts.collect()
    }
}
