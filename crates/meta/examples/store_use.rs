//! Counts the records of a metadata store, by kind: `bench/strided` reports these numbers.
//!
//! usage: `store_use DIRECTORY`, for the store of a metadata service that has ended; prints JSON.

use meta::store::{Direction, FjallStore, Opening, Scan, Store};
use std::collections::BTreeMap;
use std::path::Path;

/// Records read at a time.
const CHUNK: usize = 1024;

fn name(kind: u8) -> &'static str {
    match kind {
        0x10 => "inodes",
        0x11 => "names",
        0x14 => "extent pages",
        0x20 => "allocations",
        0x21 => "segments",
        _ => "others",
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: store_use DIRECTORY")?;
    let store = FjallStore::open(Path::new(&directory), Opening::here()?)?;
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut from: Option<Vec<u8>> = None;
    loop {
        let direction = Direction::Forward;
        let scan = Scan { prefix: &[], from: from.as_deref(), direction, limit: CHUNK };
        let records = store.scan(scan)?;
        for (key, value) in &records {
            let count = counts.entry(name(key.first().copied().unwrap_or(0))).or_default();
            count.0 += 1;
            count.1 += (key.len() + value.len()) as u64;
        }
        let Some((last, _)) = records.last().filter(|_| records.len() == CHUNK) else { break };
        // The least key above the last one.
        from = Some([last.as_slice(), &[0]].concat());
    }
    let items = counts.iter().map(|(kind, (records, bytes))| {
        format!("{kind:?}: {{\"records\": {records}, \"bytes\": {bytes}}}")
    });
    println!("{{{}}}", items.collect::<Vec<_>>().join(", "));
    Ok(())
}
