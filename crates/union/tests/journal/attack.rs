//! Seeds damage durable bytes at random (`rot.rs`).

use union::journal::{Journal, JournalError, SegmentId, Storage};

use super::disk::Disk;
use super::model::options;
use super::rot::{Sum, attack, closed};

// Goal: no damage of what was durable makes a store show other bytes.
#[test]
fn damage_never_shows_other_bytes() {
    let mut sum = Sum::default();
    for seed in 0..super::seeds(10) {
        attack(seed, 20, &mut sum);
    }
    assert!(sum.refused > 20 && sum.errors > 5 && sum.right > 5, "{sum:?}");
}

// Goal: each kind of damage has its word, and a whole store has none.
#[test]
fn damage_has_words() {
    let (disk, _) = closed(8);
    let last = disk.list().unwrap().last().unwrap().segment;
    let open = |disk: &Disk| match Journal::open(disk.copy(), options()) {
        Err(error @ JournalError::Lost(_)) => error.to_string(),
        other => panic!("it opens: {other:?}"),
    };
    let change = |act: &dyn Fn(&Disk)| {
        let disk = disk.copy();
        act(&disk);
        open(&disk)
    };
    let header = change(&|disk| disk.damage(last, |bytes| bytes[20] ^= 1));
    assert!(header.contains("header is destroyed"), "{header}");
    let missing = change(&|disk| disk.remove(last));
    assert!(missing.contains(&format!("{last}.log is missing")), "{missing}");
    let all = change(&|disk| {
        for file in disk.list().unwrap() {
            disk.remove(SegmentId(file.segment.0));
        }
    });
    assert!(all.contains("missing") && all.contains("Nothing was changed"), "{all}");
}
