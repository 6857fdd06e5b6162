//! The cost of the chain of commits and the watermark: commits and syncs of the store beside the
//! bare engine's, in turn.
//!
//! usage: `store_cost DIRECTORY [ROUNDS]`, on the file system to measure.

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use meta::store::{Batch, FjallStore, Opening, Store};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Commits of a round.
const COMMITS: u32 = 2000;
/// Syncs of a round, each after one commit.
const SYNCS: u32 = 40;
/// Records of a commit, as for a create.
const RECORDS: u32 = 5;

fn batch(number: u32) -> Batch {
    let record = |part: u32| {
        let key = format!("{part}-{:08}", number % 50_000).into_bytes();
        (key, Some(vec![number as u8; 60]))
    };
    Batch { writes: (0..RECORDS).map(record).collect() }
}

fn bare(database: &Database, records: &Keyspace, number: u32) -> Result<(), fjall::Error> {
    let mut writes = database.batch().durability(Some(PersistMode::Buffer));
    for (key, value) in batch(number).writes {
        writes.insert(records, key, value.unwrap_or_default());
    }
    writes.commit()
}

/// Returns the microseconds that one of `count` runs takes.
fn measure<E>(count: u32, mut run: impl FnMut(u32) -> Result<(), E>) -> Result<f64, E> {
    let begin = Instant::now();
    for number in 0..count {
        run(number)?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: store_cost DIRECTORY [ROUNDS]")?;
    let rounds: usize = std::env::args().nth(2).map_or(Ok(15), |rounds| rounds.parse())?;
    let directory = tempfile::tempdir_in(Path::new(&directory))?;
    let database = Database::builder(directory.path().join("bare")).worker_threads(1).open()?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(16 << 20);
    let records = database.keyspace("records", options)?;
    let mut store = FjallStore::open(&directory.path().join("store"), Opening::here()?)?;
    let [mut commit, mut commit_bare, mut sync, mut sync_bare] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        commit_bare.push(measure(COMMITS, |number| bare(&database, &records, number))?);
        commit.push(measure(COMMITS, |number| store.commit(&batch(number)))?);
        sync_bare.push(measure(SYNCS, |number| {
            bare(&database, &records, number)?;
            database.persist(PersistMode::SyncAll)
        })?);
        sync.push(measure(SYNCS, |number| {
            store.commit(&batch(number))?;
            store.sync()
        })?);
    }
    let more = |ours: &[f64], bare: &[f64]| {
        median(ours.iter().zip(bare).map(|(ours, bare)| ours - bare).collect())
    };
    for (what, ours, bare) in
        [("commit", &commit, &commit_bare), ("commit and sync", &sync, &sync_bare)]
    {
        let (with, without) = (median(ours.clone()), median(bare.clone()));
        println!("{what}: {with:.1} us, bare {without:.1} us, {:+.1} us each", more(ours, bare));
    }
    Ok(())
}
