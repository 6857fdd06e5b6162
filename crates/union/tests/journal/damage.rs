//! Damage that a crash does not explain, full and failing disks, and input of any kind.

use union::journal::{
    Creation, FileId, Journal, JournalError, Options, SegmentId, Source, Storage, Time,
};

use super::disk::{Disk, Random};
use super::model::{Driver, named, options};

fn new(disk: &Disk) -> Journal<Disk> {
    Journal::open(disk.clone(), options()).unwrap().0
}

fn child(size_bytes: u64, entry: &[u8]) -> Creation {
    named(size_bytes, &union::journal::ParentKey::new(b"p").unwrap(), entry)
}

fn read(journal: &Journal<Disk>, file: FileId, len: usize) -> Result<Vec<u8>, JournalError> {
    let mut bytes = vec![0; len];
    let count = journal.read(file, 0, &mut bytes, |_, buffer| {
        buffer.fill(b'L');
        Ok(())
    })?;
    bytes.truncate(count);
    Ok(bytes)
}

// Goal: bytes between a smaller and a larger size are zeros, stored or not, and never the lower's.
#[test]
fn truncate_down_and_up_gives_zeros() {
    let disk = Disk::new(1);
    let mut journal = new(&disk);
    let file = journal.create(child(100, b"f")).unwrap();
    journal.write(file, 40, b"xxxxxxxxxxxxxxxxxxxx", Time::default()).unwrap();
    journal.truncate(file, 50, Time::default()).unwrap();
    journal.truncate(file, 100, Time::default()).unwrap();
    let expected = [vec![b'L'; 40], vec![b'x'; 10], vec![0; 50]].concat();
    assert_eq!(read(&journal, file, 100).unwrap(), expected);
    drop(journal);
    assert_eq!(read(&new(&disk), file, 100).unwrap(), expected);
}

// Goal: a durable record that is lost is reported, and what it may have concerned gives errors
// instead of the lower's bytes; files made later are not concerned.
#[test]
fn a_lost_durable_record_is_damage() {
    let disk = Disk::new(2);
    let mut journal = new(&disk);
    let old = journal.create(child(100, b"old")).unwrap();
    let before = journal.usage().used_bytes;
    journal.write(old, 0, b"data", Time::default()).unwrap();
    let new_file = journal.create(child(100, b"new")).unwrap();
    journal.sync().unwrap();
    // Only what follows a sync knows of it.
    journal.write(new_file, 0, b"more", Time::default()).unwrap();
    drop(journal);
    disk.damage(SegmentId(1), |bytes| bytes[before as usize + 20] ^= 1);
    assert!(matches!(Journal::open(disk.clone(), options()), Err(JournalError::Lost(_))));
    let accepting = Options { accepts_damage: true, ..options() };
    let (journal, recovery) = Journal::open(disk, accepting).unwrap();
    assert_eq!(recovery.damage.len(), 1);
    assert!(journal.file(old).unwrap().is_damaged());
    assert!(matches!(read(&journal, old, 100), Err(JournalError::Damaged { .. })));
    let expected = [b"more".to_vec(), vec![b'L'; 96]].concat();
    assert_eq!(read(&journal, new_file, 100).unwrap(), expected);
}

// Goal: the cleaner checks what it moves: bytes that rotted become an error, not new truth.
#[test]
fn rotten_data_is_not_moved() {
    let disk = Disk::new(3);
    let mut journal = new(&disk);
    let file = journal.create(child(8000, b"f")).unwrap();
    journal.write(file, 100, b"precious", Time::default()).unwrap();
    let Source::Stored { segment, position, .. } =
        journal.pieces(file, 100..108).unwrap()[0].source
    else {
        panic!("the bytes are stored")
    };
    let other = journal.create(child(0, b"g")).unwrap();
    for _ in 0..20 {
        journal.write(other, 0, &[7; 3000], Time::default()).unwrap();
    }
    journal.sync().unwrap();
    disk.damage(segment, |bytes| bytes[position as usize] ^= 1);
    while journal.clean(1 << 20).unwrap().has_more {
        journal.sync().unwrap();
    }
    assert!(matches!(read(&journal, file, 8000), Err(JournalError::Damaged { offset: 100, .. })));
    drop(journal);
    let journal = new(&disk);
    assert!(matches!(read(&journal, file, 8000), Err(JournalError::Damaged { offset: 100, .. })));
    assert_eq!(read(&journal, file, 100).unwrap(), vec![b'L'; 100]);
}

// Goal: a full disk refuses the operation that needs room, loses nothing, and works again.
#[test]
fn a_full_disk_refuses_and_recovers() {
    let disk = Disk::new(4);
    let mut journal = new(&disk);
    let file = journal.create(child(0, b"f")).unwrap();
    disk.0.borrow_mut().space_left = Some(0);
    let mut stored = 0;
    let error = loop {
        match journal.write(file, stored, &[9; 1000], Time::default()) {
            Ok(count) => stored += count,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, JournalError::NoSpace(_)));
    assert_eq!(error.errno(), rustix::io::Errno::NOSPC);
    assert_eq!(read(&journal, file, 1 << 16).unwrap(), vec![9; stored as usize]);
    journal.sync().unwrap();
    disk.0.borrow_mut().space_left = None;
    journal.write(file, stored, &[9; 1000], Time::default()).unwrap();
    drop(journal);
    assert_eq!(read(&new(&disk), file, 1 << 16).unwrap(), vec![9; stored as usize + 1000]);
}

// Goal: a failed flush is never followed by a success.
#[test]
fn a_failed_flush_is_sticky() {
    let disk = Disk::new(5);
    let mut journal = new(&disk);
    journal.create(child(10, b"f")).unwrap();
    disk.0.borrow_mut().fails_sync = true;
    assert!(journal.sync().is_err());
    disk.0.borrow_mut().fails_sync = false;
    assert!(matches!(journal.sync(), Err(JournalError::Poisoned)));
    assert!(matches!(journal.create(child(10, b"g")), Err(JournalError::Poisoned)));
}

// Goal: names are taken once, an exchange is one step, and what cannot be stored is refused.
#[test]
fn names_and_bounds() {
    use union::journal::{Name, NameChange, ParentKey, Xattr};
    let mut journal = new(&Disk::new(6));
    let (a, b) = (journal.create(child(1, b"a")).unwrap(), journal.create(child(2, b"b")).unwrap());
    assert!(matches!(journal.create(child(1, b"a")), Err(JournalError::NameTaken(_))));
    let parent = ParentKey::new(b"p").unwrap();
    let at = |entry: &[u8]| Name::new(parent.clone(), entry).unwrap();
    journal
        .change_names(vec![
            NameChange::Remove(a, parent.clone(), at(b"a").name),
            NameChange::Add(a, at(b"b")),
            NameChange::Remove(b, parent.clone(), at(b"b").name),
            NameChange::Add(b, at(b"a")),
        ])
        .unwrap();
    assert_eq!((journal.lookup(&parent, b"a"), journal.lookup(&parent, b"b")), (Some(b), Some(a)));
    assert_eq!(journal.children(&parent).count(), 2);
    let taken = journal.change_names(vec![NameChange::Add(a, at(b"a"))]);
    assert!(matches!(taken, Err(JournalError::NameTaken(_))));
    let huge = Xattr { name: b"x".as_slice().into(), value: vec![0; 70_000].into() };
    assert!(matches!(journal.set_xattr(a, huge), Err(JournalError::TooLarge { .. })));
    assert!(journal.truncate(a, u64::MAX, Time::default()).is_err());
    assert!(journal.write(a, u64::MAX - 1, b"xyz", Time::default()).is_err());
    let unknown = journal.write(FileId(999), 0, b"", Time::default());
    assert!(matches!(unknown, Err(JournalError::NoSuchFile(_))));
}

// Goal: with whole chunks asked for, a first write takes its chunk; without, its own bytes; and a
// chunk in too many pieces is stored anew.
#[test]
fn what_a_write_stores() {
    let whole = Options { has_whole_chunks: true, ..options() };
    let mut journal = Journal::open(Disk::new(7), whole).unwrap().0;
    let file = journal.create(child(10_000, b"f")).unwrap();
    assert_eq!(journal.plan_write(file, 5000..5010).unwrap(), 4096..8192);
    assert_eq!(journal.plan_write(file, 9000..9010).unwrap(), 8192..10_000);
    assert_eq!(journal.plan_write(file, 4000..9000).unwrap(), 0..10_000);
    assert_eq!(journal.plan_write(file, 4096..8192).unwrap(), 4096..8192);
    journal.write(file, 4096, &[1; 4096], Time::default()).unwrap();
    assert_eq!(journal.plan_write(file, 5000..5010).unwrap(), 5000..5010);
    let mut journal = Journal::open(Disk::new(8), options()).unwrap().0;
    let file = journal.create(child(10_000, b"f")).unwrap();
    for at in [0, 1000, 2000] {
        assert_eq!(journal.plan_write(file, at..at + 10).unwrap(), at..at + 10);
        journal.write(file, at, &[1; 10], Time::default()).unwrap();
    }
    assert_eq!(journal.plan_write(file, 3000..3010).unwrap(), 0..4096);
}

// Goal: when the maps are full the file to complete is named, and nothing else changes.
#[test]
fn maps_are_bounded() {
    let few = Options { runs_max: 16, ..options() };
    let mut journal = Journal::open(Disk::new(9), few).unwrap().0;
    let file = journal.create(child(100_000, b"f")).unwrap();
    let mut result = Ok(0);
    for at in 0..100 {
        result = journal.write(file, at * 4096, b"x", Time::default());
        if result.is_err() {
            break;
        }
    }
    assert!(matches!(result, Err(JournalError::MapsFull(full)) if full == file));
    assert!(journal.usage().runs <= 16);
}

// Goal: segments of any content, and logs with any bytes changed, cut, or blocks swapped, are
// opened or refused, never a panic, and the store takes new files after.
#[test]
fn any_bytes_are_survived() {
    for seed in 0..super::seeds(100) {
        let mut random = Random::new(seed);
        let disk = if seed % 3 == 0 { Disk::new(seed) } else { used(seed) };
        if seed % 3 == 0 {
            for number in 1..4 {
                let len = random.below(5000) as usize;
                disk.plant(SegmentId(number), (0..len).map(|_| random.next() as u8).collect());
            }
        }
        for file in disk.list().unwrap() {
            if random.below(2) == 0 {
                disk.damage(file.segment, |bytes| garble(bytes, &mut random));
            }
        }
        let accepting = Options { accepts_damage: true, ..options() };
        let (mut journal, _) = Journal::open(disk, accepting).unwrap();
        let ids: Vec<_> = journal.files().map(|(id, _)| id).collect();
        for id in ids {
            let _ = read(&journal, id, 30_000);
            let _ = journal.status();
            let _ = journal.write(id, 10, b"after", Time::default());
        }
        let file = journal.create(child(10, &[200, 201])).unwrap();
        assert_eq!(read(&journal, file, 10).unwrap(), b"LLLLLLLLLL");
        journal.sync().unwrap();
        for _ in 0..50 {
            if !journal.clean(5000).unwrap().has_more {
                break;
            }
            journal.sync().unwrap();
        }
    }
}

fn used(seed: u64) -> Disk {
    let mut driver = Driver::new(seed, options());
    for _ in 0..80 {
        driver.step().unwrap();
    }
    driver.disk.clone()
}

fn garble(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.len() < 1024 {
        return;
    }
    let len = bytes.len() as u64;
    match random.below(4) {
        0 => bytes.truncate(random.below(len) as usize),
        1 => {
            for _ in 0..=random.below(20) {
                bytes[random.below(len) as usize] = random.next() as u8;
            }
        }
        2 => {
            let (from, to) = (random.below(len - 512) as usize, random.below(len - 512) as usize);
            bytes.copy_within(from..from + 512, to);
        }
        _ => {
            let at = random.below(len - 512) as usize;
            bytes[at..at + 512].fill(0);
        }
    }
}

fn bytes_of(disk: &Disk, segment: SegmentId) -> Vec<u8> {
    let mut copy = Vec::new();
    disk.damage(segment, |bytes| copy.clone_from(bytes));
    copy
}

/// Returns a file with two unsynced writes of 8 bytes, the first of them torn in its data, and the
/// end of the first in its segment.
fn torn(disk: &Disk) -> (FileId, usize) {
    let mut journal = new(disk);
    let file = journal.create(child(100, b"f")).unwrap();
    journal.write(file, 0, b"oldold1!", Time::default()).unwrap();
    let end = journal.usage().used_bytes as usize;
    journal.write(file, 0, b"oldold2!", Time::default()).unwrap();
    drop(journal);
    disk.damage(SegmentId(1), |bytes| bytes[end - 8] ^= 1);
    (file, end)
}

// Goal: a record of an earlier life of the space is none, although its number would fit.
#[test]
fn records_of_another_segment_are_none() {
    let disk = Disk::new(10);
    let (file, end) = torn(&disk);
    let old = bytes_of(&disk, SegmentId(1));
    let mut journal = new(&disk);
    assert_eq!(read(&journal, file, 8).unwrap(), b"LLLLLLLL");
    journal.write(file, 0, b"newnew1!", Time::default()).unwrap();
    let at = 96 + (end - torn_start(&old, end));
    drop(journal);
    disk.damage(SegmentId(2), |bytes| bytes[at..at + 200].copy_from_slice(&old[end..end + 200]));
    let journal = new(&disk);
    assert_eq!(read(&journal, file, 8).unwrap(), b"newnew1!");
}

/// Both writes are equally long.
fn torn_start(old: &[u8], end: usize) -> usize {
    let is_end = |at: &usize| old[*at..*at + 8] == *b"oldold2!";
    let second = (end..old.len()).find(is_end).unwrap() + 8 - end;
    end - second
}

// Goal: a record that a recovery gave up stays given up, also when later records with its number
// are durable and its segment was not cut on the disk.
#[test]
fn what_was_given_up_stays_so() {
    let disk = Disk::new(11);
    let (file, _) = torn(&disk);
    let old = bytes_of(&disk, SegmentId(1));
    let mut journal = new(&disk);
    journal.write(file, 0, b"newnew1!", Time::default()).unwrap();
    journal.sync().unwrap();
    journal.write(file, 8, b"newnew2!", Time::default()).unwrap();
    journal.sync().unwrap();
    drop(journal);
    disk.damage(SegmentId(1), |bytes| *bytes = old);
    let (journal, recovery) = Journal::open(disk, options()).unwrap();
    assert_eq!(recovery.damage, vec![]);
    assert_eq!(read(&journal, file, 16).unwrap(), b"newnew1!newnew2!");
}

// Goal: cleaning keeps everything of a file that has no stored bytes: size, zeros, names, xattrs.
#[test]
fn cleaning_keeps_zeros_and_metadata() {
    let disk = Disk::new(12);
    let mut journal = new(&disk);
    let file = journal.create(child(8000, b"f")).unwrap();
    let xattr = union::journal::Xattr { name: b"n".as_slice().into(), value: [1; 9].into() };
    journal.set_xattr(file, xattr.clone()).unwrap();
    journal.zero(file, 100..200, Time::default()).unwrap();
    journal.truncate(file, 500, Time::default()).unwrap();
    let other = journal.create(child(0, b"g")).unwrap();
    for _ in 0..20 {
        journal.write(other, 0, &[7; 3000], Time::default()).unwrap();
    }
    journal.sync().unwrap();
    let mut deleted = 0;
    loop {
        let cleaned = journal.clean(1 << 20).unwrap();
        deleted += cleaned.segments_deleted;
        if !cleaned.has_more {
            break;
        }
        journal.sync().unwrap();
    }
    assert!(deleted > 0);
    drop(journal);
    let journal = new(&disk);
    let expected = [vec![b'L'; 100], vec![0; 100], vec![b'L'; 300]].concat();
    assert_eq!(read(&journal, file, 8000).unwrap(), expected);
    assert_eq!(journal.file(file).unwrap().xattrs(), [xattr]);
    assert_eq!(journal.file(file).unwrap().names().len(), 1);
}
