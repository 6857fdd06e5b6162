//! An operator's actions: requests to the metadata service for the pool's state, and attempts to
//! connect without permission.
//!
//! Every answer must be possible; without faults the exact answer is known. At the end of a run a
//! node is removed: exactly the files that the service reports as hit must be unreadable, and all
//! must be readable when the node is back.

use crate::cluster::{self, Cluster};
use crate::random::Random;
use crate::worker::Shared;
use host::{ConnectOptions, Controller, Error};
use nvme::{Nqn, Status};
use protocol::DeviceId;
use protocol::admin::{Answer, Call, MetaCounts};
use protocol::space::{DeviceInfo, PoolUse, SessionInfo};
use reactor::SocketOptions;
use reactor::time::{now, sleep};
use rpc::{Admin, Connection, Connector, Handler, Limits, Nothing, Reply, RpcError};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Longest pause between two requests, in milliseconds.
const PAUSE_MAX_MS: u64 = 5_000;
/// How long an answer may take.
const DEADLINE: Duration = Duration::from_mins(1);
/// Number of paths to request: more than there are.
const PATHS_MAX: u32 = 4096;
/// Pause between two checks of an awaited state.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// Longest silence of a healthy client, in milliseconds.
const SILENT_MAX_MS: u64 = 10_000;

/// The metadata service never calls a tool.
struct Silent;

impl Handler<Connector<Admin>> for Silent {
    fn called(&self, call: Nothing, _reply: Reply<Connector<Admin>>) {
        match call {}
    }
}

/// The state of a pool.
struct PoolState {
    devices: Vec<DeviceInfo>,
    /// Devices whose targets have reported counts.
    counted: Vec<DeviceId>,
    sessions: Vec<SessionInfo>,
    pool_use: PoolUse,
    meta: MetaCounts,
}

/// An operator, on a machine of its own.
pub(crate) struct Operator {
    shared: Rc<Shared>,
    /// The last count of the metadata service, unless it is killed in between.
    transactions: Cell<u64>,
}

impl Operator {
    pub(crate) fn new(shared: &Rc<Shared>) -> Rc<Operator> {
        Rc::new(Operator { shared: Rc::clone(shared), transactions: Cell::default() })
    }

    /// Sends requests until it is aborted.
    pub(crate) async fn run(self: Rc<Self>, mut random: Random) {
        loop {
            sleep(Duration::from_millis(random.between(1, PAUSE_MAX_MS))).await;
            let asked = self.look(&mut random).await;
            if let Err(error) = asked
                && !self.shared.plan.has_faults()
            {
                self.violation(format!("an operator's question fails without cause: {error}"));
            }
        }
    }

    async fn look(&self, random: &mut Random) -> Result<(), RpcError> {
        let state = self.status().await?;
        self.check_status(&state);
        let hit = self.files_hit().await?;
        let is_expected = hit.is_empty() || self.shared.plan.has_faults();
        self.expect(is_expected, || format!("files hit though nothing is broken: {hit:?}"));
        for (path, device) in &hit {
            let is_known = state.devices.iter().any(|info| info.device == *device);
            let is_path = path.split('/').all(|part| !part.is_empty());
            self.expect(is_known && is_path, || format!("file hit: {path:?} on {device}"));
        }
        if !state.devices.is_empty() {
            self.knock(random.of(&state.devices)).await;
        }
        self.shared.history.borrow_mut().counts.questions += 1;
        Ok(())
    }

    fn violation(&self, text: String) {
        self.shared.history.borrow_mut().violations.push(text);
    }

    fn expect(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violation(what());
        }
    }

    async fn ask(&self, call: Call) -> Result<Answer, RpcError> {
        let (address, credential) = (self.shared.cluster.meta_address(), cluster::credential());
        let (options, limits) = (SocketOptions::default(), Limits::default());
        let handler = Rc::new(Silent);
        let connection = Connection::<Connector<Admin>>::connect(
            address,
            &options,
            &credential,
            limits,
            handler,
        )
        .await?;
        connection.call(&call, Some(DEADLINE)).await
    }

    async fn status(&self) -> Result<PoolState, RpcError> {
        loop {
            match self.ask(Call::Status).await? {
                Answer::Status { devices, counts, sessions, pool_use, meta, .. } => {
                    let counted = counts.iter().map(|counts| counts.device).collect();
                    return Ok(PoolState { devices, counted, sessions, pool_use, meta });
                }
                other => self.violation(format!("the state of the pool is {other:?}")),
            }
        }
    }

    /// Returns the paths of the files hit, with one device each.
    async fn files_hit(&self) -> Result<Vec<(String, DeviceId)>, RpcError> {
        let answer = self.ask(Call::FilesHit { count_max: PATHS_MAX }).await?;
        let (Answer::Paths(paths) | Answer::PathsSoFar(paths)) = answer else {
            self.violation(format!("the files hit are {answer:?}"));
            return Ok(Vec::new());
        };
        let text =
            |(path, device): (Vec<u8>, _)| (String::from_utf8_lossy(&path).into_owned(), device);
        Ok(paths.into_iter().map(text).collect())
    }

    /// Checks that a reported state is one of this cluster and consistent.
    fn check_status(&self, state: &PoolState) {
        let cluster = &self.shared.cluster;
        let bytes = self.shared.plan.device_bytes;
        let mut seen = BTreeSet::new();
        for info in &state.devices {
            let machine = cluster.machines.iter().find(|machine| machine.name() == info.node);
            let is_known = machine.is_some_and(|machine| machine.has(info.uuid));
            let size = info.blocks * u64::from(info.block_size);
            let is_right = is_known && size == bytes && !info.is_volatile && seen.insert(info.uuid);
            self.expect(is_right, || format!("a device of the pool: {info:?}"));
        }
        let is_counted =
            |device: &DeviceId| state.devices.iter().any(|info| info.device == *device);
        self.expect(state.counted.iter().all(is_counted), || "counts of no device".to_owned());
        for session in &state.sessions {
            let is_known = cluster.machines.iter().any(|machine| machine.name() == session.node);
            self.expect(is_known, || format!("a session of the pool: {session:?}"));
        }
        let PoolUse { total_bytes, free_bytes, .. } = state.pool_use;
        let is_possible =
            free_bytes <= total_bytes && total_bytes <= state.devices.len() as u64 * bytes;
        self.expect(is_possible, || format!("the pool's use: {:?}", state.pool_use));
        if !self.shared.plan.has_faults() {
            self.check_whole(state);
        }
    }

    /// Checks that without faults all nodes are there.
    fn check_whole(&self, state: &PoolState) {
        let nodes = self.shared.cluster.machines.len();
        let online = state.devices.iter().filter(|device| device.online).count();
        let awake = state.sessions.iter().filter(|it| it.silent_ms < SILENT_MAX_MS).count();
        let is_whole = (online, awake, state.sessions.len()) == (nodes, nodes, nodes);
        self.expect(is_whole, || {
            format!("of {nodes} nodes {online} are online; sessions: {:?}", state.sessions)
        });
        let before = self.transactions.replace(state.meta.transactions);
        let is_growing = before <= state.meta.transactions;
        self.expect(is_growing, || format!("{before} transactions, then {:?}", state.meta));
    }

    /// Checks that a target admits no stranger, not even for discovery.
    async fn knock(&self, device: &DeviceInfo) {
        let Ok(address) = device.address.traddr.parse::<SocketAddr>() else {
            return self.violation(format!("no address: {device:?}"));
        };
        let options = ConnectOptions::new(address, Nqn::discovery());
        match Controller::connect_discovery(options).await {
            Err(Error::Refused { status, .. }) if status.is(Status::CONNECT_INVALID_HOST) => {}
            Err(error) if error.is_connection_error() && self.shared.plan.has_faults() => {}
            Err(error) => self.violation(format!("a stranger at {device:?}: {error}")),
            Ok(_) => self.violation(format!("a stranger is let in at {device:?}")),
        }
    }

    /// Waits until the service reports a node's device as online, or as offline.
    async fn until_online(&self, node: &str, is_online: bool) {
        let deadline = now() + DEADLINE;
        while now() < deadline {
            if let Ok(state) = self.status().await
                && state.devices.iter().any(|it| it.node == node && it.online == is_online)
            {
                return;
            }
            sleep(LOOK_PAUSE).await;
        }
        self.violation(format!("the service never reports {node} with online = {is_online}"));
    }

    /// Checks with a node removed that exactly the files reported as hit are unreadable. `readable`
    /// tries to read all files and returns the results.
    pub(crate) async fn lose_node<F: Future<Output = Vec<(String, bool)>>>(
        self: &Rc<Self>,
        index: usize,
        read_all: impl FnOnce() -> F,
    ) {
        let cluster: &Rc<Cluster> = &self.shared.cluster;
        let name = cluster.machines[index].name().to_owned();
        self.shared.kill_node(index, None);
        self.on_machine(move |this| async move { this.until_online(&name, false).await }).await;
        let hit = self.on_machine(|this| async move { this.files_hit().await.unwrap_or_default() });
        let hit: BTreeSet<String> = hit.await.into_iter().map(|(path, _)| path).collect();
        for (path, is_readable) in read_all().await {
            if is_readable == hit.contains(&path) {
                let text = format!("{path} can be read: {is_readable}; reported as hit: {hit:?}");
                self.violation(text);
            }
        }
        self.shared.history.borrow_mut().counts.files_hit += hit.len() as u64;
        cluster.start_node(index);
        cluster.all_up().await;
        let name = cluster.machines[index].name().to_owned();
        self.on_machine(move |this| async move { this.until_online(&name, true).await }).await;
        let hit = self.on_machine(|this| async move { this.files_hit().await.unwrap_or_default() });
        let hit = hit.await;
        self.expect(hit.is_empty(), || format!("all nodes are back, but hit is: {hit:?}"));
    }

    /// Runs a function as a task of the operator's machine.
    async fn on_machine<T: 'static, F: Future<Output = T> + 'static>(
        self: &Rc<Self>,
        job: impl FnOnce(Rc<Self>) -> F,
    ) -> T {
        let job = self.shared.cluster.operator.spawn(job(Rc::clone(self)));
        job.await.expect("the operator is never killed")
    }
}
