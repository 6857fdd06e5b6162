//! A damaged store: after any bit flip, zeroed page, cut or removal, a start either finds every
//! acknowledged commit, or is refused with an error that names what is missing. Nothing is lost
//! without an error.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use meta::store::{Batch, Checked, Direction, Error, FjallStore, Opening, Scan, Store};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use uuid::Uuid;

const BOOT: Uuid = Uuid::from_u128(1);
const NEXT_BOOT: Uuid = Uuid::from_u128(2);

/// Commits of a store. Those from the last synced one on are not synced.
const COMMITS: u32 = 120;
const SYNCED: u32 = 110;

fn opening(boot: Uuid) -> Opening {
    Opening { boot, accept_loss: false }
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number:05}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    format!("value {number} ").repeat(20).into_bytes()
}

fn commit(store: &mut FjallStore, number: u32) {
    let batch = Batch { writes: vec![(key(number), Some(value(number)))] };
    store.commit(&batch).unwrap();
}

/// Makes the store of a process that dies without closing it: a copy of its files while it is open.
fn make(at: &Path) {
    let made = directory();
    let mut store = open(made.path(), opening(BOOT)).unwrap();
    for number in 0..COMMITS {
        commit(&mut store, number);
        if number == SYNCED - 1 {
            store.sync().unwrap();
        }
    }
    copy(made.path(), at);
}

/// Opens or checks a store. While another test starts `cp`, its child has a copy of each lock for a
/// moment.
fn when_free<T>(act: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..500 {
        match act() {
            Err(Error::InUse(_)) => std::thread::sleep(std::time::Duration::from_millis(10)),
            result => return result,
        }
    }
    act()
}

fn open(directory: &Path, opening: Opening) -> Result<FjallStore, Error> {
    when_free(|| FjallStore::open(directory, opening))
}

fn check(directory: &Path, boot: Uuid) -> Result<Checked, Error> {
    when_free(|| FjallStore::check(directory, boot))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let mut cp = std::process::Command::new("cp");
    let done = cp.args(["-a", "--sparse=always"]).arg(from.join(".")).arg(to).status();
    assert!(done.unwrap().success());
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Returns how many of the commits a store has; they must be the first ones, whole.
fn held(store: &FjallStore) -> u32 {
    let scan = Scan { prefix: b"key-", from: None, direction: Direction::Forward, limit: 100_000 };
    let found = store.scan(scan).unwrap();
    for (number, (found_key, found_value)) in (0..).zip(&found) {
        assert_eq!(*found_key, key(number), "a commit is missing in the middle");
        assert_eq!(*found_value, value(number));
    }
    found.len() as u32
}

/// Returns the bytes of a file to damage: all of a small one, some of a large one's used part.
fn offsets(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    let steps = used.min(steps());
    (0..steps).map(|step| (step * used / steps + step % 7).min(used - 1)).collect()
}

/// Returns the offsets to try in each file; `DAMAGE_STEPS` sets another number.
fn steps() -> u64 {
    std::env::var("DAMAGE_STEPS").map_or(12, |steps| steps.parse().unwrap())
}

/// Creates a directory, in memory if possible: a start flushes the files that it opens.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns the commits after one start of a damaged copy: `None` if it was refused.
fn start(at: &Path, boot: Uuid, what: &str) -> Option<u32> {
    match open(at, opening(boot)) {
        Ok(store) => Some(held(&store)),
        Err(Error::Lost(loss)) => {
            let text = loss.to_string();
            assert!(
                !loss.findings.is_empty() && text.contains(&at.display().to_string()),
                "{text}"
            );
            assert!(text.contains("Restore the directory from a backup"), "{text}");
            None
        }
        Err(error) => {
            assert!(!error.to_string().is_empty(), "{what}");
            None
        }
    }
}

/// Damages copies of a store, one after the other, and starts them.
fn try_all(made: &Path, needed: u32, boot: Uuid) -> (u32, u32) {
    let (mut refused, mut whole) = (0, 0);
    let mut try_one = |path: &Path, what: String, damage: &dyn Fn(&Path)| {
        let at = directory();
        copy(made, at.path());
        damage(&at.path().join(path));
        match start(at.path(), boot, &what) {
            None => refused += 1,
            Some(held) => {
                assert!(
                    held >= needed,
                    "{what}: only {held} of {needed} commits, without an error"
                );
                whole += 1;
            }
        }
    };
    for path in files(made) {
        let name = path.strip_prefix(made).unwrap().to_path_buf();
        let shown = name.display().to_string();
        let write = |path: &Path, at: u64, bytes: &[u8]| {
            OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
        };
        for at in offsets(&path) {
            try_one(&name, format!("{shown}: a bit at {at}"), &|path| {
                let mut byte = [0];
                File::open(path).unwrap().read_exact_at(&mut byte, at).unwrap();
                write(path, at, &[byte[0] ^ (1 << (at % 8))]);
            });
        }
        let length = path.metadata().unwrap().len();
        for page in offsets(&path).iter().step_by(4).map(|at| at / 4096 * 4096) {
            let zeros = vec![0; 4096.min(length - page) as usize];
            try_one(&name, format!("{shown}: a zeroed page at {page}"), &|path| {
                write(path, page, &zeros);
            });
            try_one(&name, format!("{shown}: cut off at {page}"), &|path| {
                OpenOptions::new().write(true).open(path).unwrap().set_len(page).unwrap();
            });
        }
        try_one(&name, format!("{shown}: removed"), &|path| std::fs::remove_file(path).unwrap());
    }
    (refused, whole)
}

/// Goal: after the death of a process, every damage of any file of the store is either harmless or
/// refused; in the same boot all commits must be there.
#[test]
fn damage_after_a_kill_is_never_silent() {
    let made = directory();
    make(made.path());
    let (refused, whole) = try_all(made.path(), COMMITS, BOOT);
    assert!(refused > 20 && whole > 0, "{refused} refused, {whole} whole");
}

/// Goal: after another boot all synced commits must be there.
#[test]
fn damage_after_a_power_loss_is_never_silent() {
    let made = directory();
    make(made.path());
    let (refused, whole) = try_all(made.path(), SYNCED, NEXT_BOOT);
    assert!(refused > 20 && whole > 0, "{refused} refused, {whole} whole");
}

/// Goal: the same for a store with tables: written out, closed, and written to again.
#[test]
fn damage_of_tables_is_never_silent() {
    let made = directory();
    make(made.path());
    write_out(made.path());
    let has_tables =
        files(made.path()).iter().any(|path| path.to_str().unwrap().contains("/1/tables/"));
    assert!(has_tables, "nothing was written out");
    let (refused, whole) = try_all(made.path(), COMMITS + 20, NEXT_BOOT);
    assert!(refused > 20 && whole > 0, "{refused} refused, {whole} whole");
}

/// Makes a store write its records to tables, by large records of another kind that are removed
/// again, and commits a few more.
fn write_out(at: &Path) {
    let mut store = open(at, opening(BOOT)).unwrap();
    let large = vec![0x5a; 1 << 20];
    for number in 0..20_u32 {
        let key = format!("large-{number}").into_bytes();
        store.commit(&Batch { writes: vec![(key, Some(large.clone()))] }).unwrap();
    }
    let tables = at.join("keyspaces/1/tables");
    while std::fs::read_dir(&tables).unwrap().count() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for number in COMMITS..COMMITS + 20 {
        commit(&mut store, number);
    }
    store.sync().unwrap();
}

/// Goal: a loss can be accepted, once. Afterwards the store continues from the last commit before
/// the damage, and reports the loss until its first commit.
#[test]
fn a_loss_can_be_accepted() {
    let made = directory();
    make(made.path());
    let journal = made.path().join("0.jnl");
    let bytes = std::fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    OpenOptions::new().write(true).open(&journal).unwrap().write_all_at(&[0xff], used / 2).unwrap();
    let Err(Error::Lost(loss)) = open(made.path(), opening(BOOT)) else { panic!() };
    let lost = loss.commits().unwrap();
    assert!((40..COMMITS as u64).contains(&lost) && loss.can_go_on, "{loss}");
    assert!(loss.to_string().contains(&format!("{lost} commits are missing")), "{loss}");
    assert!(matches!(check(made.path(), BOOT), Err(Error::Lost(_))));
    let accept = Opening { boot: BOOT, accept_loss: true };
    let store = open(made.path(), accept).unwrap();
    assert_eq!(u64::from(held(&store)), u64::from(COMMITS) - lost);
    assert!(store.has_lost());
    drop(store);
    assert!(open(made.path(), opening(BOOT)).is_err(), "nothing was committed yet");
    let mut store = open(made.path(), accept).unwrap();
    commit(&mut store, COMMITS - lost as u32);
    drop(store);
    let store = open(made.path(), opening(BOOT)).unwrap();
    assert!(!store.has_lost());
    assert_eq!(u64::from(held(&store)), u64::from(COMMITS) - lost + 1);
    drop(store);
    check(made.path(), BOOT).unwrap();
}

/// Goal: a store has one service at a time, and the second one gets the reason for its refusal.
#[test]
fn a_store_is_used_once() {
    let made = directory();
    let _store = FjallStore::open(made.path(), opening(BOOT)).unwrap();
    assert!(matches!(FjallStore::open(made.path(), opening(BOOT)), Err(Error::InUse(_))));
    assert!(matches!(FjallStore::check(made.path(), BOOT), Err(Error::InUse(_))));
}
