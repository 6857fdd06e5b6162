//! Rules of the core that correct calls keep: which rights they recall, what survives a kill, and
//! when space is free again.

use super::Service;
use super::files::{block_at, new_allocation};
use super::fixture::commit;
use meta::store::{Batch, CrashPoint, Store};
use meta::tree::ConflictKind;
use protocol::attr::AttrChanges;
use protocol::client::{Answer, Call, ChangeCall, Creation, OpenTold, ReadCall, SessionCall};
use protocol::{DeviceId, Errno, FreeEpoch, InodeId, Rights};

/// Blocks of a file that is cut in several steps.
const LONG_BLOCKS: u64 = 300;

impl Service {
    /// A commit past the end of a file recalls the right to its size.
    pub(super) fn conflicts(&mut self) {
        let inode = self.any_file();
        let end = self.files[&inode].len;
        let block = self.fixture.take_block();
        for (slot, grows) in [(end, true), (0, end == 0)] {
            let call = commit(
                inode,
                self.generation(inode),
                vec![new_allocation(block)],
                vec![block_at(slot, block)],
            );
            let read = Rights::READ | Rights::SOLE;
            let wanted = if grows { read | Rights::SIZE } else { read };
            let found = self.fixture.core.conflicts(self.fixture.session, &call);
            let found = found.expect("conflicts").into_iter().map(|conflict| conflict.kind);
            let found: Vec<ConflictKind> = found.collect();
            assert_eq!(found, [ConflictKind::Recall(wanted)], "rights that a commit recalls");
        }
    }

    /// Ends the reads of all sessions and frees what may be free. Returns the number of blocks that
    /// rest.
    fn free_all(&mut self) -> u64 {
        let sessions: Vec<_> = self.fixture.core.sessions().map(|(id, _)| id).collect();
        for session in sessions {
            self.fixture.core.ended_through(session, FreeEpoch(u64::MAX));
        }
        self.fixture.core.flush().expect("a commit");
        while self.fixture.core.reclaim_step(60).expect("a step") {}
        self.fixture.core.device_use(DeviceId(0)).expect("a device").resting
    }

    /// Freed blocks rest until the store is synced.
    pub(super) fn resting(&mut self) {
        for _ in 0..2 {
            self.fixture.core.sync().expect("a sync");
            self.free_all();
        }
        let inode = self.make();
        self.write_to(inode, 0..2);
        self.fixture.core.sync().expect("a sync");
        self.fixture.truncate(inode, 0);
        self.files
            .insert(inode, super::File { blocks: [].into(), len: 0, ..self.files[&inode].clone() });
        assert_eq!(self.free_all(), 2, "blocks are free before the store is synced");
        self.fixture.core.sync().expect("a sync");
        assert_eq!(self.free_all(), 0, "blocks rest for good");
    }

    /// A file that is cut in several steps is cut to the end after a kill.
    pub(super) fn long_cut(&mut self) {
        let inode = self.fixture.file("long");
        // Every second block: extents that no record describes together.
        for slot in 0..LONG_BLOCKS {
            let block = self.fixture.take_block();
            let call = commit(
                inode,
                self.generation(inode),
                vec![new_allocation(block)],
                vec![block_at(2 * slot, block)],
            );
            self.call(&call);
        }
        self.fixture.core.sync().expect("a sync");
        self.free_all();
        let before = self.fixture.core.device_use(DeviceId(0)).expect("a device").allocated();
        self.fixture.truncate(inode, 0);
        if self.random.chance(30) {
            self.fixture.core.reclaim_step(10).expect("a step");
        }
        self.kill();
        for _ in 0..2 {
            self.fixture.core.sync().expect("a sync");
            self.free_all();
        }
        let after = self.fixture.core.device_use(DeviceId(0)).expect("a device").allocated();
        assert_eq!(before - after, LONG_BLOCKS, "blocks of a file that was cut");
        self.unlink("long");
    }

    fn unlink(&mut self, name: &str) {
        let name = name.as_bytes().to_vec();
        let unlink = ChangeCall::Unlink { parent: InodeId::ROOT, name, told: OpenTold::OfAny };
        self.call(&Call::Change(unlink));
    }

    /// A file that its maker may hold back does not come along with others.
    pub(super) fn kept_back(&mut self) {
        let shown = self.make();
        let create = Call::Change(ChangeCall::Create {
            parent: InodeId::ROOT,
            name: b"kept".to_vec(),
            creation: Creation::File,
            mode: 0o600,
            uid: 0,
            gid: 0,
            rights: Rights::READ | Rights::WRITE | Rights::OPEN | Rights::SOLE,
        });
        let Answer::Entry(kept) = self.call(&create) else { panic!("no entry") };
        let files = |files: &[InodeId]| Call::Read(ReadCall::ReadFiles(files.to_vec()));
        let Answer::Files(found) = self.call(&files(&[shown, kept.inode])) else {
            panic!("no files")
        };
        assert!(found[0].is_some() && found[1].is_none(), "a file that is kept back comes along");
        let other = self.fixture.other_session();
        let found = self.fixture.core.conflicts(other, &files(&[kept.inode])).expect("conflicts");
        let found: Vec<_> = found.into_iter().map(|conflict| conflict.kind).collect();
        assert_eq!(found, [ConflictKind::Recall(Rights::SOLE)], "a file is read while kept back");
        self.fixture.core.end_session(other).expect("an end");
        self.unlink("kept");
    }

    /// A file without a name lives on for a session that opens it late, or reports late that it has it
    /// open.
    pub(super) fn late_opener(&mut self) {
        let session = self.fixture.session;
        let inode = self.fixture.file("late");
        self.fixture.open.push((inode, session));
        self.unlink("late");
        let other = self.fixture.other_session();
        if self.random.chance(50) {
            self.fixture.core.note_open(other, inode).expect("a note");
        } else {
            // Through a handle that it has kept.
            let rights = Rights::OPEN;
            let acquire = Call::Session(SessionCall::Acquire { inode, rights });
            self.fixture.call_as(other, &acquire).expect("an open");
        }
        self.fixture.open.retain(|(open, _)| *open != inode);
        self.fixture.core.close(session, inode).expect("a close");
        self.kill();
        assert!(self.fixture.core.attr(inode).is_ok(), "{inode} is open and gone");
        self.fixture.core.close(other, inode).expect("a close");
        assert_eq!(self.fixture.core.attr(inode).err(), Some(Errno::ESTALE));
        self.fixture.core.end_session(other).expect("an end");
    }

    /// Data in the store: wrong bytes are refused, and bytes that were damaged at rest are an error
    /// until they are replaced or removed.
    pub(super) fn inline_data(&mut self) {
        let inode = self.fixture.file("inline");
        let text = format!("some bytes of a small file {}", self.random.next()).into_bytes();
        self.wrong_inline(inode, &text);
        let sum = self.random.chance(50).then(|| protocol::sums::checksum(&text));
        let call = self.inline_commit(inode, &text, sum);
        self.call(&call);
        let read = Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 1 });
        let Answer::Extents { inline, .. } = self.call(&read) else { panic!("no extents") };
        assert_eq!(inline.0, text, "bytes of a small file");
        self.flip(&text);
        assert_eq!(self.fixture.call(&read).err(), Some(Errno::EIO), "a read of damaged bytes");
        if self.random.chance(50) {
            let changes = AttrChanges { size: Some(0), ..AttrChanges::default() };
            self.call(&Call::Change(ChangeCall::SetAttr { inode, changes }));
        }
        self.unlink("inline");
        while self.fixture.core.reclaim_step(60).expect("a step") {}
    }

    /// Flips a bit of bytes in the store, as a disk may.
    fn flip(&mut self, bytes: &[u8]) {
        self.fixture.core.flush().expect("a commit");
        for (key, mut value) in self.fixture.store.records() {
            let place = value.windows(bytes.len()).position(|part| part == bytes);
            if let Some(place) = place {
                value[place] ^= 1;
                let writes = vec![(key, Some(value))];
                self.fixture.store.commit(&Batch { writes }).expect("a commit");
            }
        }
        self.fixture.reopen(CrashPoint::Process);
    }
}
