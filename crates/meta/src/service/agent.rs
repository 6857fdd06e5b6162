//! Agents: registration of devices, admission, fencing.

use super::call::Work;
use super::execute::{Executed, answer};
use super::outbox::{Outgoing, refusal};
use super::shared::Shared;
use crate::admission::{AgentState, NodeTarget};
use crate::sessions::Session;
use protocol::agent::{Answer, Call, Demand, Push, PushAnswer};
use protocol::space::DeviceInfo;
use protocol::{DataKey, DeviceId, Errno, HostId, client};
use reactor::time::{now, timeout_at};
use rpc::{Acceptor, Agent, Authenticated, Handler, Reply, RpcError, Standing};
use std::collections::BTreeSet;
use std::rc::Rc;
use tls::DataKeyUse;

/// Most messages about changed devices that a session without traffic gets in one heartbeat
/// interval.
const NEWS_PER_HEARTBEAT: u32 = 10;

type AgentReply = Reply<Acceptor<Agent>>;

/// One agent's connection.
struct AgentPeer {
    shared: Rc<Shared>,
    standing: Standing,
    state: Rc<AgentState>,
}

impl Handler<Acceptor<Agent>> for AgentPeer {
    fn called(&self, call: Call, reply: AgentReply) {
        match call {
            Call::Register { node, devices, beat, demand } => {
                self.state.heard(beat);
                self.register(&node, devices, demand, reply);
            }
            Call::Heartbeat { beat, counts } => {
                self.state.heard(beat);
                let mine = self.state.devices.borrow();
                let counts: Vec<_> =
                    counts.into_iter().filter(|c| mine.contains(&c.device)).collect();
                self.shared.agents.count(&counts);
                send(reply, &Answer::Done);
            }
            Call::HostDied(host) => self.shared.host_died(&self.standing, host, reply),
        }
    }

    fn closed(&self, reason: &str) {
        self.state.connection.borrow_mut().take();
        let lost = self.shared.agents.lost(&self.state);
        if lost.is_empty() {
            return;
        }
        tracing::warn!(?lost, reason, "an agent is out of contact: its devices are offline");
        for device in &lost {
            self.shared.core.borrow_mut().set_online(*device, false);
        }
        // Sent after the answers that wait for the store: one of them may be a `Welcome` with the
        // earlier state.
        self.shared.post(Outgoing::Then(Box::new(move |shared| {
            shared.send_devices(&lost.into_iter().collect());
        })));
    }
}

fn send(reply: AgentReply, answer: &Answer) {
    if let Err((_, error)) = reply.send(answer) {
        tracing::warn!(%error, "an agent's answer cannot be sent");
    }
}

impl AgentPeer {
    fn register(&self, node: &str, devices: Vec<DeviceInfo>, demand: Demand, reply: AgentReply) {
        if node.len() > super::client::NODE_MAX_BYTES {
            return send(reply, &Answer::Refused("the node's name is too long".into()));
        }
        if !self.standing.is_node(node) {
            tracing::warn!(node, "an agent is refused: its key is that of another node");
            return send(reply, &Answer::Refused("the key is that of another node".into()));
        }
        if demand.has_key() && self.shared.data_keys.is_none() {
            let reason = "the metadata service has no keys for targets: it runs with --plain";
            return send(reply, &Answer::Refused(reason.into()));
        }
        let failed: Vec<bool> = devices.iter().map(|device| !device.online).collect();
        let of_node =
            |device: DeviceInfo| DeviceInfo { node: node.to_owned(), online: true, ..device };
        let infos: Vec<DeviceInfo> = devices.into_iter().map(of_node).collect();
        if let Some(fault) = self.shared.core.borrow().registration_fault(&infos) {
            tracing::warn!(node, fault, "an agent is refused");
            return send(reply, &Answer::Refused(fault));
        }
        *self.state.target.borrow_mut() = NodeTarget { node: node.to_owned(), demand };
        let mut ids = Vec::new();
        for info in &infos {
            let registered = self.shared.core.borrow_mut().register_device(info);
            match registered {
                Ok(id) => ids.push(id),
                Err(error) => {
                    let reason = format!("device {}: {error}", info.uuid);
                    self.shared.offline_unserved();
                    return send(reply, &Answer::Refused(reason));
                }
            }
        }
        let gone: Vec<DeviceId> = {
            let before = self.state.devices.borrow();
            before.iter().filter(|device| !ids.contains(device)).copied().collect()
        };
        for device in &gone {
            self.shared.core.borrow_mut().set_online(*device, false);
        }
        for before in self.shared.agents.register(&self.state, &ids) {
            before.devices.borrow_mut().retain(|device| !ids.contains(device));
            if let Some(connection) = before.connection() {
                connection.close("another agent registered its devices");
            }
        }
        for device in &ids {
            self.shared.core.borrow_mut().set_online(*device, true);
        }
        for ((id, info), has_failed) in ids.iter().zip(&infos).zip(failed) {
            if has_failed {
                self.shared.exclude_device(*id, info.incarnation);
            }
        }
        tracing::info!(node, ?ids, "an agent registers its devices");
        self.shared.post(Outgoing::Then(Box::new(move |shared| {
            let changed = ids.iter().copied().chain(gone).collect();
            send(reply, &Answer::Registered(ids));
            shared.send_devices(&changed);
        })));
    }
}

impl Shared {
    /// Serves an authenticated agent.
    pub(super) fn serve_agent(self: &Rc<Self>, authenticated: Authenticated) {
        let state = AgentState::new();
        let (shared, standing) = (Rc::clone(self), authenticated.standing());
        let peer = AgentPeer { shared, standing, state: Rc::clone(&state) };
        let connection = authenticated.start::<Agent>(Rc::new(peer));
        *state.connection.borrow_mut() = Some(connection);
        self.remember(Rc::new(move |reason| {
            super::client::close_unless_empty(state.connection().as_ref(), reason)
        }));
    }

    /// Marks devices offline that no agent serves: all of them after a start, and some after a
    /// registration that was refused halfway.
    pub(super) fn offline_unserved(&self) {
        let devices = self.core.borrow().devices();
        for device in devices {
            if self.agents.connection(device.device).is_none() {
                self.core.borrow_mut().set_online(device.device, false);
            }
        }
    }

    /// Sends the changed devices to all sessions. The change goes out before any other message to a
    /// session, because that message may name these devices, and a client writes only to devices
    /// that it knows to be online. Sessions without traffic get all changes of a short interval in
    /// one message, so hundreds of starting nodes cost each session tens of messages.
    fn send_devices(self: &Rc<Self>, changed: &BTreeSet<DeviceId>) {
        let infos = self.core.borrow().devices_of(changed);
        let infos: Vec<_> = infos.into_iter().map(Rc::new).collect();
        let all = self.sessions.borrow().all();
        for session in all {
            // A session without a connection asks when it starts or resumes.
            let Some(connection) = session.connection() else { continue };
            let news = infos.iter().map(|info| (info.device, Rc::clone(info)));
            session.news.borrow_mut().extend(news);
            let asked = Rc::downgrade(&session);
            connection.defer(move || {
                let news = asked.upgrade().map(|session| session.news.take()).unwrap_or_default();
                client::Push::Devices(news.into_values().map(|info| (*info).clone()).collect())
            });
        }
        self.news_wanted.notify();
    }

    /// Sends pending changes to sessions without traffic, a moment after the first change.
    pub(super) async fn send_news(self: Rc<Self>) {
        loop {
            self.news_wanted.notified().await;
            reactor::time::sleep(self.times.heartbeat / NEWS_PER_HEARTBEAT).await;
            let all = self.sessions.borrow().all();
            for session in all {
                if let Some(connection) = session.connection()
                    && !reactor::mutant!("news-kept")
                {
                    connection.send_deferred();
                }
            }
        }
    }

    /// Sends all sessions a message whose answer does not matter. A session that cannot get it loses
    /// its connection: when it resumes, it asks for what the message says, and has no cached data.
    pub(super) fn send_to_sessions(&self, push: &client::Push) {
        for session in self.sessions.borrow().all() {
            let Some(connection) = session.connection() else { continue };
            connection.call_then(push, move |answer| {
                if let (Err(RpcError::Protocol(error)), Some(connection)) =
                    (answer, session.connection())
                {
                    connection.close(&error.to_string());
                }
            });
        }
    }

    fn host_died(self: &Rc<Self>, standing: &Standing, host: HostId, reply: AgentReply) {
        let session = self.sessions.borrow().by_host(host);
        let is_its = |s: &Rc<Session>| standing.is_node(&s.node);
        let Some(session) = session.filter(is_its).filter(|_| !reactor::mutant!("dead-host-lives"))
        else {
            return send(reply, &Answer::Done);
        };
        // Its kernel still uses the names and attributes that it was lent.
        session.gone_at.set(Some(now() + self.times.lent));
        self.end_session(&session, "its process died");
        let shared = Rc::clone(self);
        reactor::spawn(async move {
            shared.until_ended(&session).await;
            send(reply, &Answer::Done);
        });
    }

    /// `Admit`: notes the admission in the store, synced against a loss of power, then sends it to
    /// the device's agent.
    pub(super) fn admit(self: &Rc<Self>, work: &Rc<Work>, device: DeviceId) -> Executed {
        if !self.core.borrow().devices().iter().any(|known| known.device == device) {
            return Executed::Answer(refusal(Errno::ENODEV));
        }
        let noted = self.core.borrow_mut().note_admitted(work.session.id, device);
        if let Err(error) = noted {
            return Executed::Answer(refusal(error.to_errno()));
        }
        let is_kept = work.session.kept_admissions.borrow().contains(&device);
        let work = Rc::clone(work);
        self.post(Outgoing::Then(Box::new(move |shared| {
            if is_kept || reactor::mutant!("admitted-unsynced") {
                return shared.admit_then_answer(work, device);
            }
            // After a loss of power, a store without this admission could not fence it.
            shared.sync_then(move |shared| {
                work.session.kept_admissions.borrow_mut().push(device);
                shared.admit_then_answer(work, device);
            });
        })));
        Executed::Later
    }

    fn admit_then_answer(self: &Rc<Self>, work: Rc<Work>, device: DeviceId) {
        let shared = Rc::clone(self);
        reactor::spawn(async move {
            let response = match shared.admit_now(&work.session, device).await {
                Ok(admitted) => answer(admitted),
                Err(errno) => refusal(errno),
            };
            shared.finish(&work, response);
        });
    }

    async fn admit_now(
        &self,
        session: &Session,
        device: DeviceId,
    ) -> Result<client::Answer, Errno> {
        // A device that has been out of contact for long gets no further wait.
        let patience = self.agents.lost_at(device) + self.times.session_deadline;
        let deadline = (now() + self.times.contact_deadline).min(patience.max(now()));
        let lapse_ms = self.times.admission_lapse.as_millis() as u32;
        let key = loop {
            let agent = self.contact(device, deadline).await.ok_or(Errno::ENODEV)?;
            let connection = agent.connection().ok_or(Errno::ENODEV)?;
            // From here to the call nothing waits, so a session that is ending is never admitted.
            if !session.is_live() {
                return Err(Errno::ESTALE);
            }
            let beaten = agent.beaten.notified();
            let beat = self.agents.name(&agent, &[device]);
            let (host, epoch) = (session.host, session.epoch);
            let key = self.data_key(session, &agent.target.borrow());
            let push = Push::Admit { host, epoch, beat, lapse_ms, key: key.clone() };
            match connection.call(&push, Some(self.times.admit_deadline)).await {
                Ok(PushAnswer::Done) => break key,
                Ok(PushAnswer::Fenced) => return Err(Errno::ESTALE),
                // The admission needs a newer beat.
                Ok(PushAnswer::Lapsed) => {
                    timeout_at(deadline, beaten).await.map_err(|_| Errno::ENODEV)?;
                }
                Ok(_) => connection.close("an admission was answered by nonsense"),
                Err(error) => {
                    connection.close(&format!("an admission was not answered: {error}"));
                }
            }
        };
        let devices = self.core.borrow().devices();
        let info = devices.iter().find(|known| known.device == device).ok_or(Errno::ENODEV)?;
        Ok(client::Answer::Admitted { incarnation: info.incarnation, key })
    }

    /// Derives the key with which a session connects to a node's target, if that demands one. Each
    /// admission of the session there derives the same key, so no key is stored.
    fn data_key(&self, session: &Session, target: &NodeTarget) -> Option<DataKey> {
        if !target.demand.has_key() {
            return None;
        }
        let of = DataKeyUse {
            file_system: *self.core.borrow().file_system().as_bytes(),
            session: session.id.0,
            epoch: session.epoch.0,
            host: session.host.0,
            node: if reactor::mutant!("one-key-for-all-targets") { "" } else { &target.node },
        };
        let of = if reactor::mutant!("one-key-for-all-sessions") {
            DataKeyUse { session: 0, epoch: 0, host: [0; 16], ..of }
        } else {
            of
        };
        DataKey::new(self.data_keys.as_ref()?.data_key(&of))
    }

    /// Returns a device's connected agent; waits for one until the deadline.
    async fn contact(
        &self,
        device: DeviceId,
        deadline: reactor::time::Instant,
    ) -> Option<Rc<AgentState>> {
        loop {
            let registered = self.agents.registered.notified();
            let agent = self.agents.agent(device);
            if let Some(agent) = agent.filter(|agent| agent.connection().is_some()) {
                return Some(agent);
            }
            timeout_at(deadline, registered).await.ok()?;
        }
    }

    /// Fences a session at a device. Completes when the device's agent confirms it, or when the
    /// session's admissions there must have lapsed.
    pub(super) async fn fence(self: Rc<Self>, session: Rc<Session>, device: DeviceId) {
        let push = Push::Fence { host: session.host, epoch: session.epoch };
        loop {
            let cut = if reactor::mutant!("lapse-cut-short") { 2 } else { 1 };
            let lapsed = self.agents.last_named(device) + self.times.admission_lapse / cut;
            let is_lapsed = now() >= lapsed || reactor::mutant!("unreachable-counts-as-fenced");
            if is_lapsed && self.agents.connection(device).is_none() {
                tracing::warn!(session = session.id.0, %device, "fenced by lapse");
                return;
            }
            let agent = self.contact(device, lapsed).await;
            let Some(connection) = agent.and_then(|agent| agent.connection()) else { continue };
            let deadline = self.times.fence_deadline.min(self.times.admission_lapse);
            match connection.call(&push, Some(deadline)).await {
                Ok(PushAnswer::Fenced) => return,
                Ok(_) => connection.close("a fence was answered by nonsense"),
                Err(error) => connection.close(&format!("a fence was not answered: {error}")),
            }
        }
    }
}
