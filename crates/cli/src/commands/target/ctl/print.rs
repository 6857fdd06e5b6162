//! The output of `tsumugi target ctl`.

use super::ask::Target;
use crate::commands::target::control::Request;
use crate::commands::target::size;
use crate::observe::show;
use anyhow::Context;
use metrics::{Counts, Snapshot};
use serde_json::{Value, json};
use std::time::Duration;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn each(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Prints the target, its subsystems and its limits.
pub(super) fn show(target: &Value) {
    println!(
        "target {} of version {}, running for {} s",
        target["pid"],
        text(&target["version"]),
        target["seconds"]
    );
    for address in each(&target["listeners"]) {
        let tls = if target["requires_tls"] == true { ", TLS only" } else { "" };
        println!("listening on {}{tls}", text(address));
    }
    for address in each(&target["listeners_rdma"]) {
        println!("listening on {} (rdma)", text(address));
    }
    let (limits, memory) = (&target["limits"], &target["memory"]);
    println!(
        "{} of {} connections, {} of {} controllers, {} refused",
        target["connections"],
        limits["connections_max"],
        target["controllers"],
        limits["controllers_max"],
        target["refused"]
    );
    let bytes = |value: &Value| show::bytes(number(value) as f64);
    println!(
        "queues: {} for each controller, {} entries, transfers up to {}",
        limits["io_queues_max"],
        limits["queue_size_max"],
        bytes(&limits["mdts_bytes"])
    );
    println!(
        "memory: at most {} in all; {} for a new connection, {} for a full queue pair, {} for \
         data, of which {} are used",
        bytes(&memory["bytes_max"]),
        bytes(&memory["new_connection_bytes"]),
        bytes(&memory["io_queue_pair_bytes"]),
        bytes(&memory["data_bytes_max"]),
        bytes(&memory["data_bytes_now"])
    );
    for (core, pairs) in each(&target["cores"]).enumerate() {
        println!("core {core}: {} I/O and {} admin queue pairs", pairs["io"], pairs["admin"]);
    }
    for subsystem in each(&target["subsystems"]) {
        show_subsystem(subsystem, &target["hosts_with_keys"]);
    }
}

fn show_subsystem(subsystem: &Value, keyed: &Value) {
    println!("subsystem {}, serial {}", text(&subsystem["nqn"]), text(&subsystem["serial"]));
    if subsystem["hosts"].is_null() {
        println!("  any host may connect");
    }
    for host in each(&subsystem["hosts"]) {
        let key = each(keyed).find(|it| it["nqn"] == *host);
        let has = |name: &str| key.is_some_and(|key| key[name] == true);
        let dhchap = if has("dhchap") { ", authenticates with a key" } else { "" };
        let tls = if has("tls") { ", connects under TLS" } else { "" };
        println!("  host {}{dhchap}{tls}", text(host));
    }
    for (group, state) in subsystem["ana"].as_object().into_iter().flatten() {
        println!("  ANA group {group}: {}", text(state));
    }
    for namespace in each(&subsystem["namespaces"]) {
        let group = &namespace["ana_group"];
        let group = if group.is_null() { String::new() } else { format!(", ANA group {group}") };
        let iops = namespace["iops_max"].as_u64().map(|it| format!(", {it} commands/s at most"));
        let rate = namespace["bytes_per_s_max"].as_u64();
        let rate = rate.map(|it| format!(", {}/s at most", show::bytes(it as f64)));
        let limits = iops.unwrap_or_default() + &rate.unwrap_or_default();
        println!(
            "  namespace {}: {}, {} in blocks of {}{}{group}{limits}, uuid {}, {} commands, {} \
             media errors",
            namespace["nsid"],
            text(&namespace["store"]),
            size::format(number(&namespace["size_bytes"])),
            size::format(number(&namespace["block_bytes"])),
            if namespace["read_only"] == true { ", read-only" } else { "" },
            text(&namespace["uuid"]),
            namespace["counts"]["commands"],
            namespace["counts"]["media_errors"],
        );
        if let Some(hosts) = namespace["hosts"].as_array() {
            let names: Vec<&str> = hosts.iter().map(text).collect();
            let names = if names.is_empty() { "no host".to_owned() } else { names.join(", ") };
            println!("    only {names} may see it");
        }
    }
}

/// Prints the connected controllers.
pub(super) fn connections(result: &Value) {
    for one in each(&result["connections"]) {
        println!(
            "controller {} of {}: host {} from {} at {}, {} I/O queue pairs, {} s",
            one["controller"],
            text(&one["subsystem"]),
            one["host"].as_str().unwrap_or_else(|| text(&one["host_id"])),
            text(&one["peer"]),
            text(&one["local"]),
            each(&one["io_queues"]).count(),
            one["seconds"],
        );
    }
}

/// Prints the result of a change.
pub(super) fn report(result: &Value) {
    for change in each(&result["changes"]) {
        println!("{}", text(change));
    }
    for namespace in each(&result["namespaces"]) {
        println!(
            "namespace {} of {}: {}, uuid {}",
            namespace["nsid"],
            text(&namespace["subsystem"]),
            size::format(number(&namespace["size_bytes"])),
            text(&namespace["uuid"]),
        );
    }
    if number(&result["controllers_ended"]) > 0 {
        println!("controllers ended: {}", result["controllers_ended"]);
    }
    for warning in each(&result["warnings"]) {
        eprintln!("tsumugi: {}", text(warning));
    }
    if each(&result["changes"]).next().is_none() {
        println!("nothing has changed");
    }
}

/// Prints counts since the start of the target, or rates over intervals.
///
/// # Errors
/// If the target does not answer.
pub(super) fn stats(
    target: &mut Target,
    interval: Option<Duration>,
    count: Option<u64>,
    is_json: bool,
) -> anyhow::Result<()> {
    let mut before = snapshot(target)?;
    let Some(interval) = interval else {
        print(before.operations, None, is_json);
        return Ok(());
    };
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        std::thread::sleep(interval);
        let now = snapshot(target)?;
        let over = Duration::from_nanos(now.at_ns.saturating_sub(before.at_ns));
        print(now.operations_since(&before), Some(over), is_json);
        before = now;
        left -= 1;
    }
    Ok(())
}

fn snapshot(target: &mut Target) -> anyhow::Result<Snapshot> {
    let result = target.ask(&Request::Stats {})?;
    serde_json::from_value(result).context("the target sent an unknown answer")
}

fn print(operations: Vec<Counts>, over: Option<Duration>, is_json: bool) {
    if is_json {
        let seconds = over.map(|over| over.as_secs_f64());
        println!("{}", json!({ "seconds": seconds, "operations": operations }));
        return;
    }
    println!("{}", show::head(over.is_some()));
    for one in show::sorted(operations) {
        println!("{}", show::line(&one, over));
    }
}
