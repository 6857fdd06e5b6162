//! The real directory: names, lock, marker, witness.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use union::journal::{
    Attributes, Creation, Directory, FileId, Journal, JournalError, Kind, Name, Options, ParentKey,
    Recovery, Time,
};

fn open(work: &Path) -> Result<(Journal<Directory>, Recovery), JournalError> {
    let work: OwnedFd = File::open(work).unwrap().into();
    Journal::open(Directory::open(work)?, Options::default())
}

fn create(journal: &mut Journal<Directory>) -> FileId {
    let parent = ParentKey::new(b"root").unwrap();
    journal
        .create(Creation {
            lower: None,
            kind: Kind::Partial,
            size_bytes: 0,
            attributes: Attributes::default(),
            xattrs: Vec::new(),
            names: vec![Name::new(parent, b"file").unwrap()],
        })
        .unwrap()
}

fn content(journal: &Journal<Directory>, file: FileId) -> Vec<u8> {
    let mut bytes = Vec::new();
    let none = |_: u64, _: &mut [u8]| panic!("there is no lower");
    journal
        .copy_out(file, none, |offset, part| {
            bytes.resize(offset as usize, 0);
            bytes.extend_from_slice(part);
            Ok(())
        })
        .unwrap();
    bytes
}

// Goal: what was written is there after the process ended without a word, the kernel is kept out by
// the marker as long as something partial was synced, and only one process has the store.
#[test]
fn a_directory_keeps_what_was_written() {
    let work = tempfile::tempdir().unwrap();
    let marker = work.path().join("work/incompat/tsumugi");
    let (mut journal, recovery) = open(work.path()).unwrap();
    assert_eq!(recovery, Recovery::default());
    assert!(matches!(open(work.path()), Err(JournalError::Locked)));
    let file = create(&mut journal);
    let data: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    assert_eq!(journal.write(file, 0, &data, Time::default()).unwrap(), data.len() as u64);
    assert!(!marker.exists());
    let ticket = journal.ticket().unwrap();
    assert!(!ticket.data.is_empty() && marker.exists());
    for handle in &ticket.data {
        rustix::fs::fdatasync(handle).unwrap();
    }
    for handle in &ticket.names {
        rustix::fs::fsync(handle).unwrap();
    }
    journal.synced(&ticket).unwrap();
    assert!(journal.ticket().unwrap().is_empty());
    drop(journal);
    let (mut journal, recovery) = open(work.path()).unwrap();
    assert!(recovery.damage.is_empty());
    assert_eq!(content(&journal, file), data);
    journal.publish(file, b"#1").unwrap();
    journal.sync().unwrap();
    journal.published(file).unwrap();
    assert!(marker.exists());
    journal.sync().unwrap();
    assert!(!marker.exists() && !marker.parent().unwrap().exists());
    drop(journal);
    let (journal, _) = open(work.path()).unwrap();
    assert_eq!(journal.usage().files, 0);
    assert!(Directory::exists(File::open(work.path()).unwrap()).unwrap());
}

// Goal: segments go when nothing in them is needed, and readers that hold a handle go on.
#[test]
fn deleted_segments_stay_readable() {
    use union::journal::Source;
    let work = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(work.path()).unwrap();
    let file = create(&mut journal);
    journal.write(file, 0, b"first", Time::default()).unwrap();
    let piece = journal.pieces(file, 0..5).unwrap().remove(0);
    let Source::Stored { handle, position, .. } = piece.source else { panic!("it is stored") };
    for _ in 0..40 {
        journal.write(file, 0, &vec![1; 200_000], Time::default()).unwrap();
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
    let mut bytes = [0; 5];
    rustix::io::pread(&handle, &mut bytes, position).unwrap();
    assert_eq!(&bytes, b"first");
    let files = std::fs::read_dir(work.path().join("tsumugi")).unwrap().count();
    // And the file of marks.
    assert_eq!(files, journal.usage().segments + 1);
}
