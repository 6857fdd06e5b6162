//! `tsumugi volume list`: the volumes of a pool.

use super::{open, size};
use crate::output::print_json;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use volume::{Pool, Usage, VolumeInfo};

/// Arguments of `tsumugi volume list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// File or block device of the pool
    pub(super) pool: PathBuf,
    /// Print the list as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs `tsumugi volume list`.
pub(super) async fn run(args: &ListArgs) -> anyhow::Result<()> {
    let pool = open(&args.pool).await?;
    print(&listing(&pool), args.json)
}

/// Returns a pool and its volumes.
pub(in crate::commands) fn listing(pool: &Pool) -> Value {
    let volumes: Vec<Value> = pool.list().iter().map(value).collect();
    json!({ "pool": of_pool(&pool.usage()), "volumes": volumes })
}

/// Prints what [`listing`] returns.
pub(super) fn print(listing: &Value, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        return print_json(listing);
    }
    let bytes = |value: &Value| size::format(value.as_u64().unwrap_or_default());
    let (pool, none) = (&listing["pool"], Vec::new());
    println!(
        "{} of {} free, clusters of {}, {} of {} metadata pages used",
        bytes(&pool["free_bytes"]),
        bytes(&pool["size_bytes"]),
        bytes(&pool["cluster_bytes"]),
        pool["metadata_pages"],
        pool["metadata_pages_max"]
    );
    let volumes = listing["volumes"].as_array().unwrap_or(&none);
    if volumes.is_empty() {
        println!("there are no volumes");
        return Ok(());
    }
    let text = |volume: &Value, key: &str| volume[key].as_str().unwrap_or("-").to_owned();
    let width = volumes.iter().map(|it| text(it, "name").len()).max().unwrap_or(0).max(6);
    println!(
        "{:width$}  {:8}  {:>10}  {:>10}  {:>10}  of",
        "volume", "kind", "size", "used", "own"
    );
    for volume in volumes {
        let [size, used, own] =
            ["size_bytes", "used_bytes", "own_bytes"].map(|key| bytes(&volume[key]));
        let [name, kind, origin] = ["name", "kind", "origin"].map(|key| text(volume, key));
        println!("{name:width$}  {kind:8}  {size:>10}  {used:>10}  {own:>10}  {origin}");
    }
    Ok(())
}

fn of_pool(usage: &Usage) -> Value {
    json!({
        "uuid": usage.uuid,
        "size_bytes": usage.size,
        "free_bytes": usage.free,
        "cluster_bytes": usage.layout.cluster_bytes,
        "metadata_pages": usage.pages,
        "metadata_pages_max": usage.pages_max,
    })
}

fn value(volume: &VolumeInfo) -> Value {
    json!({
        "name": volume.name,
        "uuid": volume.uuid,
        "kind": if volume.is_snapshot { "snapshot" } else { "volume" },
        "size_bytes": volume.size,
        "used_bytes": volume.mapped,
        "own_bytes": volume.own,
        "origin": volume.origin,
    })
}
