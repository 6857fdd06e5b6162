//! Measures the cost of reads and scans beside a record that is rewritten often: for the embedded
//! store alone, and with the index over it that the service uses.
//!
//! `hot_keys DIRECTORY [REWRITES]`; the directory must be empty.

use meta::store::{Batch, Direction, Error, FjallStore, Indexed, Opening, Scan, Store};
use std::path::PathBuf;
use std::time::Instant;

/// Other records before and after the hot one.
const OTHERS: u64 = 1000;
const VALUE_BYTES: usize = 300;
const LOOKS: u32 = 50;

type Failure = Box<dyn std::error::Error>;

/// Returns a key in the form of the service's keys: a tag and an inode, then a number.
fn key(number: u64) -> Vec<u8> {
    [b"pinode-12".as_slice(), format!("{number:08}").as_bytes()].concat()
}

fn put(store: &mut dyn Store, number: u64) -> Result<(), Failure> {
    let writes = vec![(key(number), Some(vec![7; VALUE_BYTES]))];
    Ok(store.commit(&Batch { writes })?)
}

fn look<T>(name: &str, look: impl Fn() -> Result<T, Error>) -> Result<(), Failure> {
    let begun = Instant::now();
    (0..LOOKS).try_for_each(|_| look().map(drop))?;
    let micros = begun.elapsed().as_secs_f64() * 1e6 / f64::from(LOOKS);
    println!("  {name:26} {micros:>9.1} us");
    Ok(())
}

fn measure(store: &mut dyn Store, rewrites: u64) -> Result<(), Failure> {
    (0..OTHERS).try_for_each(|number| put(store, number))?;
    let hot = OTHERS / 2;
    let begun = Instant::now();
    (0..rewrites).try_for_each(|_| put(store, hot))?;
    let micros = begun.elapsed().as_secs_f64() * 1e6 / rewrites as f64;
    println!("  {:26} {micros:>9.1} us", "a rewrite");
    look("get of another", || store.get(&key(hot - 1)))?;
    look("get of the hot one", || store.get(&key(hot)))?;
    for (name, from, direction) in [
        ("first at or after it", hot, Direction::Forward),
        ("last at or before it", hot, Direction::Backward),
        ("first after it", hot + 1, Direction::Forward),
        ("last before it", hot - 1, Direction::Backward),
    ] {
        let (prefix, from) = (&key(0)[..9], key(from));
        let scan = Scan { prefix, from: Some(&from), direction, limit: 1 };
        look(name, || store.scan(scan))?;
    }
    let (prefix, direction) = (&key(0)[..9], Direction::Forward);
    let scan = Scan { prefix, from: None, direction, limit: 1024 };
    look("all records", || store.scan(scan))
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("usage: hot_keys DIRECTORY [REWRITES]")?);
    let rewrites = arguments.next().map_or(Ok(20_000), |count| count.parse())?;
    println!("the store as it is:");
    measure(&mut FjallStore::open(&directory.join("plain"), Opening::here()?)?, rewrites)?;
    println!("with the index:");
    let store = FjallStore::open(&directory.join("indexed"), Opening::here()?)?;
    measure(&mut Indexed::new(Box::new(store)), rewrites)
}
