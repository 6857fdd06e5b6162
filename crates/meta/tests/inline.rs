//! Data that lies in the store: its checksum.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "parts of the fixture serve other tests")]

#[path = "common/fixture.rs"]
mod common;

use common::Fixture;
use meta::store::{Batch, CrashPoint, Store};
use protocol::attr::AttrChanges;
use protocol::client::{Answer, Call, ChangeCall, OpenTold, ReadCall};
use protocol::inline::{Bytes, InlineRun};
use protocol::{Errno, ExtentList, InodeId};

const TEXT: &[u8] = b"some bytes of a small file";

fn write(fixture: &mut Fixture, inode: InodeId, offset: u32, bytes: &[u8]) -> Result<(), Errno> {
    let call = Call::Change(ChangeCall::Commit {
        inode,
        generation: fixture.core.attr(inode).unwrap().generation,
        allocations: Vec::new(),
        extents: ExtentList::default(),
        inline: vec![InlineRun { offset, bytes: Bytes(bytes.to_vec()) }],
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

/// Changes a bit of the data where it is stored, as a disk may.
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

/// Goal: data that was damaged in the store is an error to who reads it, or writes a part of it, and the
/// check of the store names the file. Data that replaces all of it is read again.
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

/// Goal: a file with damaged data is emptied and removed as any other.
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
