//! Data in the store itself: its checksum.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "parts of the fixture serve other tests")]

#[path = "common/fixture.rs"]
mod common;

use common::Fixture;
use meta::store::{Batch, CrashPoint, Store};
use meta::tree::{Conflict, ConflictKind};
use protocol::attr::AttrChanges;
use protocol::client::{Answer, Call, ChangeCall, Creation, OpenTold, ReadCall};
use protocol::files::SmallFile;
use protocol::inline::{Bytes, InlineRun};
use protocol::{Errno, ExtentList, InodeId, Rights};

const TEXT: &[u8] = b"some bytes of a small file";

fn write(fixture: &mut Fixture, inode: InodeId, offset: u32, bytes: &[u8]) -> Result<(), Errno> {
    let call = Call::Change(ChangeCall::Commit {
        sums: protocol::sums::Sums::default(),
        inode,
        generation: fixture.core.attr(inode).unwrap().generation,
        allocations: Vec::new(),
        extents: ExtentList::default(),
        inline: vec![InlineRun { offset, bytes: Bytes(bytes.to_vec()), sum: None }],
        mtime: None,
        kill_privileges: false,
        attributes: None,
        durable: false,
    });
    fixture.call(&call).map(drop)
}

fn read(fixture: &mut Fixture, inode: InodeId) -> Result<Vec<u8>, Errno> {
    let call = Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 100 });
    match fixture.call(&call)? {
        Answer::Extents { inline, .. } => Ok(inline.0),
        other => panic!("{other:?}"),
    }
}

/// Changes a bit of the stored data, as a disk may.
fn damage(fixture: &mut Fixture) {
    fixture.core.flush().unwrap();
    let mut damaged = 0;
    for (key, mut value) in fixture.store.records() {
        let place = value.windows(TEXT.len()).position(|bytes| bytes == TEXT);
        if let Some(place) = place {
            value[place] ^= 1;
            fixture.store.commit(&Batch { writes: vec![(key, Some(value))] }).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    fixture.reopen(CrashPoint::Process);
}

fn damaged_file(fixture: &mut Fixture) -> InodeId {
    let inode = fixture.file("a");
    write(fixture, inode, 0, TEXT).unwrap();
    assert_eq!(read(fixture, inode).unwrap(), TEXT);
    damage(fixture);
    inode
}

/// Goal: a read of data that was damaged in the store returns an error, and so does a write to a
/// part of it; the check of the store names the file. Data that replaces all of it can be read
/// again.
#[test]
fn damage_is_an_error() {
    let mut fixture = Fixture::new();
    let inode = damaged_file(&mut fixture);
    assert_eq!(read(&mut fixture, inode), Err(Errno::EIO));
    assert_eq!(write(&mut fixture, inode, 3, b"x"), Err(Errno::EIO));
    let problems = fixture.core.check().unwrap();
    assert_eq!(problems, [format!("{inode} has inline data without its checksum")]);
    let other = TEXT.to_ascii_uppercase();
    write(&mut fixture, inode, 0, &other).unwrap();
    assert_eq!(read(&mut fixture, inode).unwrap(), other);
    assert_eq!(fixture.core.check().unwrap(), Vec::<String>::new());
}

/// Goal: a file with damaged data can be emptied and removed like any other.
#[test]
fn damaged_files_go() {
    let mut fixture = Fixture::new();
    let inode = damaged_file(&mut fixture);
    let changes = AttrChanges { size: Some(0), ..AttrChanges::default() };
    fixture.call(&Call::Change(ChangeCall::SetAttr { inode, changes })).unwrap();
    assert_eq!(read(&mut fixture, inode).unwrap(), b"");
    write(&mut fixture, inode, 0, TEXT).unwrap();
    damage(&mut fixture);
    let parent = InodeId::ROOT;
    let name = b"a".to_vec();
    let unlink = ChangeCall::Unlink { parent, name, told: OpenTold::OfAny };
    fixture.call(&Call::Change(unlink)).unwrap();
    while fixture.core.reclaim_step(60).unwrap() {}
    assert_eq!(fixture.core.check().unwrap(), Vec::<String>::new());
    assert!(fixture.core.attr(inode).is_err());
}

fn read_files(fixture: &mut Fixture, files: &[InodeId]) -> Vec<Option<SmallFile>> {
    match fixture.call(&Call::Read(ReadCall::ReadFiles(files.to_vec()))) {
        Ok(Answer::Files(files)) => files,
        other => panic!("{other:?}"),
    }
}

/// Goal: small files come together. Files that are gone, or that their maker may hold back, do not
/// come along; only a request for such a file publishes it (R26).
#[test]
fn nothing_that_is_kept_back_comes_along() {
    let mut fixture = Fixture::new();
    let files = [fixture.file("a"), fixture.file("b"), InodeId(1 << 40)];
    write(&mut fixture, files[0], 0, TEXT).unwrap();
    write(&mut fixture, files[1], 5, TEXT).unwrap();
    let create = Call::Change(ChangeCall::Create {
        parent: InodeId::ROOT,
        name: b"new".to_vec(),
        creation: Creation::File,
        mode: 0o600,
        uid: 0,
        gid: 0,
        rights: Rights::READ | Rights::WRITE | Rights::OPEN | Rights::SOLE,
    });
    let Ok(Answer::Entry(new)) = fixture.call(&create) else { panic!("it is made") };
    let all = [&files[..], &[new.inode]].concat();
    let found = read_files(&mut fixture, &all);
    let bytes = |file: &Option<SmallFile>| file.as_ref().map(|file| file.bytes.0.clone());
    assert_eq!(bytes(&found[0]), Some(TEXT.to_vec()));
    assert_eq!(bytes(&found[1]), Some([&[0; 5], TEXT].concat()));
    assert_eq!((&found[2], &found[3]), (&None, &None), "gone, and kept back");
    assert_eq!(found[1].as_ref().unwrap().attr, fixture.core.attr(files[1]).unwrap());
    assert_eq!(bytes(&read_files(&mut fixture, &[new.inode])[0]), Some(Vec::new()));
    let other = fixture.other_session();
    let conflicts = |first| {
        let call = Call::Read(ReadCall::ReadFiles(vec![first, files[1]]));
        fixture.core.conflicts(other, &call).unwrap()
    };
    let kind = ConflictKind::Recall(Rights::SOLE);
    assert_eq!(conflicts(new.inode), [Conflict { inode: new.inode, kind }]);
    for wrong in [Vec::new(), vec![files[0]; 129]] {
        let answer = fixture.call(&Call::Read(ReadCall::ReadFiles(wrong)));
        assert_eq!(answer, Err(Errno::EINVAL));
    }
}
