//! What the store of copy-ups costs on a disk: run by hand, asserts nothing about time.
//!
//! `JOURNAL_DIR=/some/disk cargo test --release -p tsumugi-union --test journal_rates -- --ignored
//! --nocapture`
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use union::journal::{
    Attributes, Creation, Directory, FileId, Journal, Kind, LowerIdentity, Name, Options,
    ParentKey, Time,
};

const FILE_BYTES: u64 = 256 << 20;

fn base() -> PathBuf {
    std::env::var_os("JOURNAL_DIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
}

fn open(work: &Path, options: Options) -> Journal<Directory> {
    let directory = Directory::open(File::open(work).unwrap().into()).unwrap();
    Journal::open(directory, options).unwrap().0
}

fn create(journal: &mut Journal<Directory>, number: u64) -> FileId {
    let parent = ParentKey::new(b"parent of 24 bytes, handle").unwrap();
    let name = Name::new(parent, format!("file{number}").as_bytes()).unwrap();
    let lower = LowerIdentity {
        size_bytes: FILE_BYTES,
        path: b"usr/share/some/file".as_slice().into(),
        handle: vec![7; 16].into(),
        ..LowerIdentity::default()
    };
    let creation = Creation {
        lower: Some(lower),
        kind: Kind::Partial,
        size_bytes: FILE_BYTES,
        attributes: Attributes::default(),
        xattrs: Vec::new(),
        names: vec![name],
    };
    journal.create(creation).unwrap()
}

/// Returns the bytes that all programs have written to the disk of `path`.
fn device_bytes(path: &Path) -> u64 {
    let device = path.metadata().unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"));
    let sectors = stat.ok().and_then(|stat| stat.split_whitespace().nth(6)?.parse::<u64>().ok());
    sectors.unwrap_or(0) * 512
}

fn disk_usage(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path.join("tsumugi")).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum()
}

/// One 4 KiB write into each of `count` places, a sync each `batch`.
fn writes(has_whole_chunks: bool, count: u64, batch: u64, files: u64) {
    let work = tempfile::tempdir_in(base()).unwrap();
    let options = Options { has_whole_chunks, ..Options::default() };
    let mut journal = open(work.path(), options);
    let ids: Vec<_> = (0..files).map(|number| create(&mut journal, number)).collect();
    journal.sync().unwrap();
    let lower = vec![5; 64 << 10];
    let before = device_bytes(work.path());
    let start = Instant::now();
    let (mut syncs, mut in_syncs) = (0, 0.0);
    for number in 0..count {
        let file = ids[(number % files) as usize];
        let offset = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (FILE_BYTES / 4096)) * 4096;
        let store = journal.plan_write(file, offset..offset + 4096).unwrap();
        let len = (store.end - store.start) as usize;
        journal.write(file, store.start, &lower[..len], Time::default()).unwrap();
        if number % batch == batch - 1 {
            let start = Instant::now();
            journal.sync().unwrap();
            in_syncs += start.elapsed().as_secs_f64();
            syncs += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let asked = (count * 4096) as f64;
    let usage = journal.usage();
    println!(
        "4 KiB writes, {}: {count} into {files} files, a sync per {batch}: {:.0}/s, without syncs \
         {:.0}/s, {:.2} ms a sync; bytes per byte asked: records {:.3}, disk usage {:.2}, device \
         {:.2}; {} runs, {} segments",
        if has_whole_chunks { "64 KiB chunks" } else { "own bytes" },
        count as f64 / seconds,
        count as f64 / (seconds - in_syncs),
        in_syncs * 1e3 / f64::from(syncs.max(1)),
        usage.used_bytes as f64 / asked,
        disk_usage(work.path()) as f64 / asked,
        (device_bytes(work.path()) - before) as f64 / asked,
        usage.runs,
        usage.segments,
    );
    drop(journal);
    let start = Instant::now();
    let journal = open(work.path(), options);
    let seconds = start.elapsed().as_secs_f64();
    println!("  opened in {:.1} ms ({} runs)", seconds * 1e3, journal.usage().runs);
}

// Goal: shows the cost of a record, of a batch, of bytes, and of opening with many chunks.
#[test]
#[ignore = "a measurement"]
fn rates() {
    for has_whole_chunks in [true, false] {
        for batch in [1, 50] {
            writes(has_whole_chunks, 40 * batch, batch, 64);
        }
    }
    writes(true, 10_000, 2000, 64);
    writes(false, 100_000, 20_000, 64);
    cleaning();
}

fn cleaning() {
    let work = tempfile::tempdir_in(base()).unwrap();
    let mut journal = open(work.path(), Options::default());
    let file = create(&mut journal, 0);
    let data = vec![3; 4096];
    for number in 0..20_000u64 {
        let offset = (number * 7919 % 10_000) * 4096;
        journal.write(file, offset, &data, Time::default()).unwrap();
        if number % 3 == 0 {
            journal.write(file, 0, &data, Time::default()).unwrap();
        }
    }
    journal.sync().unwrap();
    let before = journal.usage();
    let (start, mut moved, mut longest) = (Instant::now(), 0, 0.0f64);
    loop {
        let step = Instant::now();
        let cleaned = journal.clean(1 << 20).unwrap();
        longest = longest.max(step.elapsed().as_secs_f64());
        moved += cleaned.moved_bytes;
        if !cleaned.has_more {
            break;
        }
        journal.sync().unwrap();
    }
    let after = journal.usage();
    println!(
        "cleaning: {} -> {} MB used, {} MB live, {} MB moved, {:.0} ms in all with syncs, longest \
         step {:.1} ms",
        before.used_bytes >> 20,
        after.used_bytes >> 20,
        after.live_bytes >> 20,
        moved >> 20,
        start.elapsed().as_secs_f64() * 1e3,
        longest * 1e3,
    );
}
