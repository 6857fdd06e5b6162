//! The agent: the target's connection to the metadata service.
//!
//! It registers the node's devices, carries out admissions and fences, and reports the target's
//! counts. While it has no contact, admissions lapse by the target's own clock; the agent need not
//! do anything for that. Every message that it sends carries its time of sending. An admission
//! counts from there, not from the arrival of the order to admit: see [`protocol::agent`].

use auth::TlsKey;
use block::Device;
use protocol::DeviceId;
use protocol::agent::{Answer, Beat, Call, Demand, DeviceCounts, Push, PushAnswer};
use protocol::space::DeviceInfo;
use protocol::times::Times;
use reactor::SocketOptions;
use reactor::time::sleep;
use rpc::{Connector, Credential, Limits, Reply};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use target::{Admissions, Moment, Namespace, Refusal};

type Connection = rpc::Connection<Connector<rpc::Agent>>;

/// How often counts are reported.
const COUNTS_PERIOD: Duration = Duration::from_millis(500);

/// Pause before connecting again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Attempts to connect at the start. An attempt may end early if many strangers connect to the
/// service, because the service then drops its oldest silent connections.
const START_TRIES: u32 = 5;

/// The configuration of the agent.
pub(crate) struct AgentConfig {
    pub(crate) meta: SocketAddr,
    pub(crate) sockets: SocketOptions,
    pub(crate) credential: Credential,
    pub(crate) times: Times,
    pub(crate) node: String,
    pub(crate) devices: Vec<DeviceInfo>,
    pub(crate) namespaces: Vec<Arc<Namespace>>,
    pub(crate) admissions: Arc<Admissions>,
    /// What the target demands of the connections of an admitted host.
    pub(crate) demand: Demand,
}

/// The agent.
pub(crate) struct Agent {
    config: AgentConfig,
    /// The devices' numbers, in the order of the namespaces, once they are registered.
    ids: Rc<RefCell<Vec<DeviceId>>>,
    /// The devices, as this thread flushes them.
    devices: Rc<[Rc<dyn Device>]>,
    /// The places of devices that have failed a flush.
    failed: Rc<RefCell<BTreeSet<usize>>>,
}

struct Pushes {
    admissions: Arc<Admissions>,
    ids: Rc<RefCell<Vec<DeviceId>>>,
    devices: Rc<[Rc<dyn Device>]>,
    failed: Rc<RefCell<BTreeSet<usize>>>,
}

impl rpc::Handler<Connector<rpc::Agent>> for Pushes {
    fn called(&self, push: Push, reply: Reply<Connector<rpc::Agent>>) {
        let admissions = Arc::clone(&self.admissions);
        match push {
            Push::Admit { host, epoch, beat, lapse_ms, key } => {
                reactor::spawn(async move {
                    let host = nvme::HostId(host.0);
                    let lapse = lapse(&admissions, beat, lapse_ms);
                    // All keys of the protocol have the length of TLS keys.
                    let key = key.and_then(|key| TlsKey::new(None, key.into_bytes()).ok());
                    let admitted = admissions.admit_with_key(host, epoch.0, lapse, key).await;
                    let answer = match admitted {
                        Ok(()) => PushAnswer::Done,
                        Err(Refusal::Lapsed) => PushAnswer::Lapsed,
                        Err(_) => PushAnswer::Fenced,
                    };
                    answered(reply, answer);
                });
            }
            Push::Renew { beat, lapse_ms } => {
                admissions.renew(lapse(&admissions, beat, lapse_ms));
                answered(reply, PushAnswer::Done);
            }
            Push::Fence { host, epoch } => {
                let fenced = admissions.fence(nvme::HostId(host.0), epoch.0);
                reactor::spawn(async move {
                    if !reactor::mutant!("fence-answered-early") {
                        fenced.await;
                    }
                    answered(reply, PushAnswer::Fenced);
                });
            }
            Push::Flush(device) => {
                let index = self.ids.borrow().iter().position(|id| *id == device);
                // The answer to the registration is not here yet: the service will ask again.
                let Some(index) = index else { return answered(reply, PushAnswer::Done) };
                let (flush, failed) = (self.devices[index].flush(), Rc::clone(&self.failed));
                if reactor::mutant!("agent-flush-noop") {
                    return answered(reply, PushAnswer::Flushed);
                }
                reactor::spawn(async move {
                    let answer = match flush.await {
                        Ok(()) => PushAnswer::Flushed,
                        Err(_) if reactor::mutant!("flush-failure-hidden") => PushAnswer::Flushed,
                        Err(error) => {
                            tracing::error!(
                                %device,
                                %error,
                                "a flush failed: data written since the last one may be lost"
                            );
                            failed.borrow_mut().insert(index);
                            PushAnswer::FlushFailed
                        }
                    };
                    answered(reply, answer);
                });
            }
        }
    }
}

/// Returns the beat for a message that is sent now.
fn beat(admissions: &Admissions) -> Beat {
    Beat(admissions.now().as_ns())
}

/// Returns when an admission that was given on a beat lapses. A beat in the future cannot be from
/// this agent and counts as now.
fn lapse(admissions: &Admissions, beat: Beat, lapse_ms: u32) -> Moment {
    let now = admissions.now();
    let from =
        if reactor::mutant!("lapse-from-receipt") { now } else { Moment::from_ns(beat.0).min(now) };
    from + Duration::from_millis(u64::from(lapse_ms))
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
    /// The reason as text.
    pub(crate) async fn start(config: AgentConfig) -> Result<(Rc<Agent>, Connection), String> {
        let devices = config.namespaces.iter().map(|namespace| namespace.backing().attach());
        let devices = devices.collect();
        let agent = Rc::new(Agent { config, ids: Rc::default(), devices, failed: Rc::default() });
        let mut tries = START_TRIES;
        loop {
            tries -= 1;
            match agent.connect().await {
                Ok(connection) => return Ok((agent, connection)),
                Err(error) if tries == 0 => return Err(error),
                Err(error) => {
                    tracing::info!(error, "no contact with the metadata service yet, trying again");
                    sleep(RECONNECT_PAUSE).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Connection, String> {
        let config = &self.config;
        let pushes = Rc::new(Pushes {
            admissions: Arc::clone(&config.admissions),
            ids: Rc::clone(&self.ids),
            devices: Rc::clone(&self.devices),
            failed: Rc::clone(&self.failed),
        });
        let connection = Connection::connect(
            config.meta,
            &config.sockets,
            &config.credential,
            Limits::default(),
            pushes,
        )
        .await
        .map_err(|error| error.to_string())?;
        let (node, mut devices) = (config.node.clone(), config.devices.clone());
        for index in self.failed.borrow().iter() {
            devices[*index].online = false;
        }
        let (beat, demand) = (beat(&config.admissions), config.demand);
        let call = Call::Register { node, devices, beat, demand };
        let answer = connection.call(&call, Some(config.times.request_deadline)).await;
        match answer.map_err(|error| error.to_string())? {
            Answer::Registered(ids) if ids.len() == config.devices.len() => {
                *self.ids.borrow_mut() = ids;
                Ok(connection)
            }
            Answer::Refused(why) => Err(why),
            other => Err(format!("{other:?} is not an answer to a registration")),
        }
    }

    /// Keeps in contact for ever.
    pub(crate) async fn keep(self: Rc<Self>, first: Connection) {
        let mut connection = first;
        loop {
            self.report_counts(&connection).await;
            tracing::warn!("lost the connection to the metadata service");
            connection = loop {
                sleep(RECONNECT_PAUSE).await;
                match self.connect().await {
                    Ok(connection) => break connection,
                    Err(error) => {
                        tracing::warn!(error, "no contact with the metadata service, trying again");
                    }
                }
            };
        }
    }

    /// Reports counts until the connection is lost: at once when they change, otherwise as a
    /// heartbeat.
    async fn report_counts(&self, connection: &Connection) {
        let mut reported = Vec::new();
        let mut silent = Duration::ZERO;
        let period = COUNTS_PERIOD.min(self.config.times.heartbeat);
        while connection.closed_reason().is_none() {
            let counts = self.counts();
            if counts != reported || silent >= self.config.times.heartbeat {
                let beat = beat(&self.config.admissions);
                let call = Call::Heartbeat { beat, counts: counts.clone() };
                let answer = connection.call(&call, Some(self.config.times.session_deadline)).await;
                if let Err(error) = answer {
                    connection.close(&error.to_string());
                    return;
                }
                reported = counts;
                silent = Duration::ZERO;
            }
            sleep(period).await;
            silent += period;
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

#[cfg(test)]
mod tests;
