//! The data that the control socket shows. Nothing here waits for a change in progress.

use super::{Control, Live};
use crate::commands::target::namespace::{self, NamespaceSettings};
use metrics::Family;
use nvme::log_page::AnaState;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use target::{AnaGroupId, HostAccess, Limits, Namespace, Subsystem};

impl Control {
    /// Returns the target, its subsystems and its limits.
    pub(super) fn show(&self) -> Value {
        let live = self.live().clone();
        let subsystems: Vec<Value> =
            self.target.subsystems().iter().map(|it| subsystem(it, &live)).collect();
        let hosts = live.settings.subsystems.iter().flat_map(|it| &it.hosts);
        let keyed: Vec<Value> = hosts
            .filter(|host| host.has_key())
            .map(|host| {
                json!({ "nqn": host.nqn.as_str(), "dhchap": host.has_dhchap(), "tls": host.has_tls() })
            })
            .collect();
        let cores = self.cores.queue_pairs();
        json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "seconds": self.target.uptime().as_secs(),
            "listeners": live.listeners.iter().map(|it| it.1).collect::<Vec<_>>(),
            "listeners_rdma": self.target.rdma_listeners(),
            "requires_tls": self.target.requires_tls(),
            "connections": cores.iter().map(|it| it.io + it.admin).sum::<usize>(),
            "controllers": self.target.controllers().len(),
            "cores": cores,
            "refused": self.target.admissions().refused(),
            "limits": limits(self.target.limits()),
            "memory": memory(self.target.limits(), self.target.budget().used_bytes()),
            "hosts_with_keys": keyed,
            "pools": namespace::open_pools(),
            "subsystems": subsystems,
        })
    }

    /// Returns the connected controllers.
    pub(super) fn connections(&self) -> Value {
        let now = reactor::time::now();
        let controllers = self.target.controllers();
        let all = controllers.iter().map(|it| {
            json!({
                "controller": it.id().get(),
                "host": it.host_name().map(nvme::Nqn::as_str),
                "host_id": uuid::Uuid::from_bytes(it.host().0),
                "subsystem": it.subsystem().nqn().as_str(),
                "peer": it.peer_address(),
                "local": it.local_address(),
                "transport": it.transport(),
                "io_queues": it.io_queues(),
                "seconds": now.since(it.since()).as_secs(),
            })
        });
        json!({ "connections": all.collect::<Vec<_>>() })
    }
}

fn subsystem(subsystem: &Subsystem, live: &Live) -> Value {
    let place = live.names.iter().position(|name| name == subsystem.nqn());
    let settings = place.map(|place| &live.settings.subsystems[place]);
    let stores = |namespace: &Namespace| {
        let nsid = Some(namespace.nsid().get());
        let namespaces = settings.map(|it| it.namespaces.as_slice()).unwrap_or_default();
        namespaces.iter().find(|it| it.nsid == nsid).map(NamespaceSettings::store)
    };
    let groups = (1..=target::ANA_GROUPS_MAX).filter_map(AnaGroupId::new);
    let used: BTreeSet<u32> =
        subsystem.namespaces().iter().map(|it| it.ana_group().get()).collect();
    // Groups with members, and groups that are not in the initial state.
    let ana: BTreeMap<String, &str> = groups
        .filter_map(|group| Some((group, subsystem.ana_state(group)?)))
        .filter(|(group, state)| used.contains(&group.get()) || *state != AnaState::Optimized)
        .map(|(group, state)| (group.get().to_string(), state.name()))
        .collect();
    let reports_ana = subsystem.ana_state(AnaGroupId::DEFAULT).is_some();
    let namespaces: Vec<Value> = subsystem
        .namespaces()
        .iter()
        .map(|namespace| {
            json!({
                "nsid": namespace.nsid().get(),
                "uuid": uuid::Uuid::from_bytes(namespace.uuid()),
                "size_bytes": namespace.blocks() << namespace.block_shift(),
                "block_bytes": 1_u64 << namespace.block_shift(),
                "read_only": namespace.is_write_protected(),
                "hosts": names(&namespace.hosts()),
                "iops_max": namespace.rate_limits().commands,
                "bytes_per_s_max": namespace.rate_limits().bytes,
                "ana_group": reports_ana.then(|| namespace.ana_group().get()),
                "store": stores(namespace),
                "counts": namespace.counts(),
            })
        })
        .collect();
    json!({
        "nqn": subsystem.nqn().as_str(),
        "serial": subsystem.serial(),
        "hosts": names(&subsystem.access()),
        "ana": reports_ana.then_some(ana),
        "namespaces": namespaces,
    })
}

/// Returns the names of hosts; [`None`] stands for all.
fn names(access: &HostAccess) -> Option<Vec<String>> {
    match access {
        HostAccess::Any => None,
        HostAccess::List(hosts) => Some(hosts.iter().map(|it| it.as_str().to_owned()).collect()),
    }
}

fn limits(limits: &Limits) -> Value {
    json!({
        "connections_max": limits.connections_max,
        "controllers_max": limits.controllers_max,
        "io_queues_max": limits.io_queues_max,
        "queue_size_max": limits.queue_entries_max,
        "mdts_bytes": limits.transfer_bytes_max,
    })
}

fn memory(limits: &Limits, used_bytes: usize) -> Value {
    let memory = limits.memory();
    json!({
        "new_connection_bytes": memory.new_connection_bytes,
        "io_queue_pair_bytes": memory.io_queue_pair_bytes,
        "data_bytes_max": memory.data_bytes,
        "data_bytes_now": used_bytes,
        "bytes_max": memory.bytes,
    })
}

/// Returns counts and latencies of commands since the start of the target.
///
/// # Errors
/// None in practice: they always have a form in JSON.
pub(super) fn stats() -> anyhow::Result<Value> {
    let mut snapshot = metrics::snapshot();
    snapshot.operations.retain(|it| it.family == Family::Target);
    // These fields name operations of the moment, which other commands show.
    (snapshot.running, snapshot.slow, snapshot.values) = Default::default();
    Ok(serde_json::to_value(snapshot)?)
}
