//! `tsumugi volume list`: the volumes of a pool.

use super::{open, size};
use crate::deploy::output::print_json;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use volume::{Usage, VolumeInfo};

/// Arguments of `tsumugi volume list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// File or block device of the pool
    pool: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi volume list`.
pub(super) async fn run(args: &ListArgs) -> anyhow::Result<()> {
    let pool = open(&args.pool).await?;
    let (usage, volumes) = (pool.usage(), pool.list());
    if args.json {
        let all: Vec<Value> = volumes.iter().map(value).collect();
        return print_json(&json!({ "pool": of_pool(&usage), "volumes": all }));
    }
    println!(
        "{} of {} free, clusters of {}, {} of {} metadata pages used",
        size::format(usage.free),
        size::format(usage.size),
        size::format(u64::from(usage.layout.cluster_bytes)),
        usage.pages,
        usage.pages_max
    );
    if volumes.is_empty() {
        println!("there are no volumes");
        return Ok(());
    }
    let width = volumes.iter().map(|volume| volume.name.len()).max().unwrap_or(0).max(6);
    println!(
        "{:width$}  {:8}  {:>10}  {:>10}  {:>10}  of",
        "volume", "kind", "size", "used", "own"
    );
    for volume in &volumes {
        let [size, used, own] = [volume.size, volume.mapped, volume.own].map(size::format);
        let (kind, origin) = (kind(volume), volume.origin.as_deref().unwrap_or("-"));
        println!("{:width$}  {kind:8}  {size:>10}  {used:>10}  {own:>10}  {origin}", volume.name);
    }
    Ok(())
}

fn kind(volume: &VolumeInfo) -> &'static str {
    if volume.is_snapshot { "snapshot" } else { "volume" }
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
        "kind": kind(volume),
        "size_bytes": volume.size,
        "used_bytes": volume.mapped,
        "own_bytes": volume.own,
        "origin": volume.origin,
    })
}
