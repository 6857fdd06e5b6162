//! The output of `tsumugi target`.

use super::size;
use serde_json::json;
use std::path::Path;
use target::{Cores, NamespaceCounts, Server, Target};

/// Prints where the target listens and what it exports.
pub(super) fn started(server: &Server, control: Option<&Path>, is_json: bool) {
    let subsystems = server.target().subsystems();
    if is_json {
        let line = json!({
            "listening": server.addresses(),
            "listening_rdma": server.rdma_addresses(),
            "control": control,
            "subsystems": subsystems.iter().map(|subsystem| json!({
                "nqn": subsystem.nqn().as_str(),
                "serial": subsystem.serial(),
                "namespaces": subsystem.namespaces().iter().map(|namespace| json!({
                    "nsid": namespace.nsid().get(),
                    "uuid": uuid::Uuid::from_bytes(namespace.uuid()),
                    "size_bytes": namespace.blocks() << namespace.block_shift(),
                    "block_bytes": 1_u64 << namespace.block_shift(),
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        });
        println!("{line}");
    } else {
        for address in server.addresses() {
            for subsystem in &subsystems {
                println!("listening on {address} nqn {}", subsystem.nqn());
            }
        }
        for address in server.rdma_addresses() {
            for subsystem in &subsystems {
                println!("listening on {address} nqn {} (rdma)", subsystem.nqn());
            }
        }
        if let Some(control) = control {
            println!("control socket {}", control.display());
        }
        for subsystem in &subsystems {
            for namespace in subsystem.namespaces() {
                println!(
                    "{} of {}: {} in blocks of {}{}, uuid {}",
                    namespace.nsid(),
                    subsystem.nqn(),
                    size::format(namespace.blocks() << namespace.block_shift()),
                    size::format(1 << namespace.block_shift()),
                    if namespace.is_write_protected() { ", read-only" } else { "" },
                    uuid::Uuid::from_bytes(namespace.uuid()),
                );
            }
        }
    }
}

/// Prints the counts of served commands.
pub(super) fn counts(target: &Target, connections: usize, cores: &Cores, is_json: bool) {
    let all: Vec<(String, u32, NamespaceCounts)> = target
        .subsystems()
        .iter()
        .flat_map(|subsystem| {
            let nqn = subsystem.nqn().to_string();
            let namespaces = subsystem.namespaces();
            namespaces
                .into_iter()
                .map(move |namespace| (nqn.clone(), namespace.nsid().get(), namespace.counts()))
        })
        .collect();
    if is_json {
        let namespaces: Vec<_> = all
            .iter()
            .map(|(nqn, nsid, counts)| json!({ "nqn": nqn, "nsid": nsid, "counts": counts }))
            .collect();
        let line = json!({
            "connections": connections,
            "cores": cores.queue_pairs(),
            "controllers": target.controllers().len(),
            "refused": target.admissions().refused(),
            "namespaces": namespaces,
        });
        println!("{line}");
    } else {
        let controllers = target.controllers().len();
        println!("{connections} connections, {controllers} controllers");
        for (core, pairs) in cores.queue_pairs().iter().enumerate() {
            println!("core {core}: {} I/O and {} admin queue pairs", pairs.io, pairs.admin);
        }
        for (nqn, nsid, counts) in &all {
            println!(
                "namespace {nsid} of {nqn}: {} commands, {} bytes read, {} bytes written, {} \
                 media errors, {} refused",
                counts.commands,
                counts.read_remote_bytes + counts.read_local_bytes,
                counts.written_remote_bytes + counts.written_local_bytes,
                counts.media_errors,
                counts.refused,
            );
        }
    }
}
