//! Sends random calls to the core and to the model, and compares.

mod compare;

use super::steps::Step;
use super::tree::Model;
use meta::store::{CrashPoint, MemoryStore};
use meta::tree::{Boot, Context, Core};
use proptest::sample::Index;
use protocol::attr::AttrChanges;
use protocol::client::{
    Answer, Call, ChangeCall, Creation, FallocateMode, Name, OpenTold, RenameMode, SessionCall,
    XattrMode,
};
use protocol::inline::{Bytes, InlineRun};
use protocol::space::{BlockRange, DeviceAddress, DeviceInfo, NewAllocation, Transport};
use protocol::sums::{Sums, checksum};
use protocol::{
    AllocationId, DeviceId, Errno, Extent, ExtentList, FreeEpoch, HostId, Incarnation, InodeId,
    Place, Rights, SessionId, Timestamp,
};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Block size, in bytes.
pub(crate) const BLOCK: u32 = 512;

/// Blocks of the devices: one whose blocks are soon used again, and one of two segments and a part.
const BLOCKS: [u64; 2] = [2500, 2 * 131_072 + 5000];

/// Most blocks that are allocated together.
pub(crate) const ALLOCATION_BLOCKS: u32 = 16;

/// State besides the store: the model, and the knowledge of clients.
#[derive(Clone, Debug)]
pub(crate) struct State {
    model: Model,
    session: SessionId,
    free: Vec<(DeviceId, BlockRange)>,
    /// The sum of each block, according to the last commit that named it.
    sums: BTreeMap<(DeviceId, u64), Option<u32>>,
}

/// The core beside the model.
pub(crate) struct Driver {
    core: Core,
    store: MemoryStore,
    state: State,
    time: i64,
}

fn boot() -> Boot {
    Boot {
        boot: Uuid::from_u128(1),
        file_system: Uuid::from_u128(2),
        now: Timestamp(0),
        root: (0o755, 0, 0),
    }
}

fn device(number: u128) -> DeviceInfo {
    DeviceInfo {
        device: DeviceId(0),
        uuid: Uuid::from_u128(100 + number),
        node: "node".to_owned(),
        address: DeviceAddress {
            traddr: String::new(),
            subnqn: String::new(),
            nsid: 1,
            transport: Transport::Tcp,
        },
        block_size: BLOCK,
        blocks: BLOCKS[number as usize],
        incarnation: Incarnation(7),
        is_volatile: false,
        online: true,
    }
}

/// Returns all blocks of allocations.
fn blocks_of(named: &[(AllocationId, u32)]) -> impl Iterator<Item = (DeviceId, u64)> {
    named.iter().flat_map(|(AllocationId { device, block }, count)| {
        (*block..*block + u64::from(*count)).map(|block| (*device, block))
    })
}

fn name(number: u8) -> Name {
    vec![b'a' + number]
}

impl Driver {
    pub(crate) fn new() -> Driver {
        let store = MemoryStore::new();
        let (mut core, opened) = Core::open(Box::new(store.clone()), &boot()).unwrap();
        assert!(opened.is_new && !opened.are_sessions_void);
        for number in 0..2 {
            let device = core.register_device(&device(number)).unwrap();
            core.set_online(device, true);
        }
        let (session, _) = core.create_session("node", HostId([1; 16])).unwrap();
        core.flush().unwrap();
        let mut syncer = store.clone();
        meta::store::Store::sync(&mut syncer).unwrap();
        let state = State { model: Model::new(), session, free: Vec::new(), sums: BTreeMap::new() };
        Driver { core, store, state, time: 1 }
    }

    pub(crate) fn state(&self) -> State {
        self.state.clone()
    }

    pub(crate) fn set_state(&mut self, state: State) {
        self.state = state;
    }

    pub(crate) fn batches(&self) -> usize {
        self.store.unsynced().len()
    }

    pub(crate) fn flush(&mut self) {
        self.core.flush().unwrap();
    }

    /// Crashes and opens the remaining store.
    pub(crate) fn reopen(&mut self, at: CrashPoint) {
        self.store = self.store.crashed(at);
        let (core, opened) = Core::open(Box::new(self.store.clone()), &boot()).unwrap();
        assert!(!opened.is_new && !opened.are_sessions_void);
        self.core = core;
        for device in [DeviceId(0), DeviceId(1)] {
            self.core.set_online(device, true);
        }
    }

    pub(crate) fn check(&self) {
        let problems = self.core.check().unwrap();
        assert!(problems.is_empty(), "{problems:#?}");
    }

    fn call(&mut self, call: &Call) -> Result<Answer, Errno> {
        self.time += 1;
        let (model, session) = (&self.state.model, self.state.session);
        let openers = |id: InodeId| {
            let is_open = model.nodes.get(&id).is_some_and(|node| node.is_open);
            if is_open { vec![session] } else { Vec::new() }
        };
        let context = Context { session, now: Timestamp(self.time), openers: &openers };
        self.core.conflicts(session, call).unwrap();
        let outcome = self.core.execute(&context, call)?;
        for attr in &outcome.changed {
            assert_eq!(self.core.attr(attr.inode), Ok(*attr));
        }
        Ok(outcome.answer)
    }

    fn any_inode(&self, index: Index) -> InodeId {
        let ids: Vec<_> = self.state.model.nodes.keys().copied().collect();
        ids[index.index(ids.len())]
    }

    /// Returns mostly a file, so that calls on data mostly meet data.
    fn any_file(&self, index: Index) -> InodeId {
        let nodes = self.state.model.nodes.iter();
        let files = nodes.filter(|(_, node)| node.creation == Creation::File);
        let ids: Vec<_> = files.map(|(id, _)| *id).collect();
        if ids.is_empty() { InodeId::ROOT } else { ids[index.index(ids.len())] }
    }

    fn any_directory(&self, index: Index) -> InodeId {
        let nodes = self.state.model.nodes.iter();
        let directories = nodes.filter(|(_, node)| node.is_directory());
        let ids: Vec<_> = directories.map(|(id, _)| *id).collect();
        ids[index.index(ids.len())]
    }

    /// Sends one call to both.
    pub(crate) fn run(&mut self, step: &Step) {
        match step {
            Step::Create(..) | Step::Link(..) | Step::Remove(..) | Step::Rename(..) => {
                self.run_names(step);
            }
            Step::Open(index) => {
                let inode = self.any_inode(*index);
                self.call(&Call::Session(SessionCall::Acquire { inode, rights: Rights::OPEN }))
                    .unwrap();
                self.state.model.nodes.get_mut(&inode).unwrap().is_open = true;
            }
            Step::Close(index) => {
                let inode = self.any_inode(*index);
                self.core.close(self.state.session, inode).unwrap();
                self.state.model.close(inode);
            }
            Step::Lease(other) => self.lease(DeviceId(u32::from(*other))),
            Step::Return => {
                if let Some((device, range)) = self.state.free.pop() {
                    let free = vec![range];
                    let call = Call::Change(ChangeCall::ReturnSpace { device, free });
                    assert_eq!(self.call(&call), Ok(Answer::Done));
                    assert_eq!(self.call(&call), Err(Errno::EINVAL));
                }
            }
            Step::Reclaim => {
                // As if synced: the log is kept whole for the cuts.
                self.core.flush().unwrap();
                self.core.synced(self.core.stored_free_epoch());
                self.core.reclaim_step(60).unwrap();
            }
            Step::Ended => self.core.ended_through(self.state.session, FreeEpoch(u64::MAX)),
            Step::Session => self.new_session(),
            _ => self.run_data(step),
        }
    }

    fn run_names(&mut self, step: &Step) {
        match step {
            Step::Create(parent, number, creation) => {
                let (parent, name) = (self.any_directory(*parent), name(*number));
                let call = Call::Change(ChangeCall::Create {
                    parent,
                    name: name.clone(),
                    creation: creation.clone(),
                    mode: 0o640,
                    uid: 5,
                    gid: 6,
                    rights: Rights::NONE,
                });
                let answer = self.call(&call).map(|answer| match answer {
                    Answer::Entry(attr) => attr.inode,
                    other => panic!("{other:?}"),
                });
                let id = answer.unwrap_or(InodeId(0));
                let wanted = self.state.model.create(parent, &name, creation, id);
                assert_eq!(answer.map(|_| ()), wanted);
            }
            Step::Link(inode, parent, number) => {
                let (inode, parent) = (self.any_inode(*inode), self.any_directory(*parent));
                let name = name(*number);
                let answer = self.call(&Call::Change(ChangeCall::Link {
                    inode,
                    parent,
                    name: name.clone(),
                }));
                assert_eq!(answer.map(|_| ()), self.state.model.link(inode, parent, &name));
            }
            Step::Remove(parent, number, is_rmdir) => {
                let (parent, name) = (self.any_directory(*parent), name(*number));
                let answer = self.call(&if *is_rmdir {
                    Call::Change(ChangeCall::Rmdir { parent, name: name.clone() })
                } else {
                    Call::Change(ChangeCall::Unlink {
                        parent,
                        name: name.clone(),
                        told: OpenTold::OfAny,
                    })
                });
                let wanted = self.state.model.remove(parent, &name, *is_rmdir);
                assert_eq!(answer.map(|_| ()), wanted);
            }
            Step::Rename(parent, number, new_parent, new_number, mode) => {
                let parent = self.any_directory(*parent);
                let new_parent = self.any_directory(*new_parent);
                self.rename(&(parent, name(*number)), &(new_parent, name(*new_number)), *mode);
            }
            _ => unreachable!(),
        }
    }

    fn rename(&mut self, from: &(InodeId, Name), to: &(InodeId, Name), mode: u8) {
        let mode = match mode {
            0 => RenameMode::NoReplace,
            1 => RenameMode::Exchange,
            2 => RenameMode::Whiteout,
            3 => RenameMode::WhiteoutNoReplace,
            _ => RenameMode::Replace,
        };
        let call = Call::Change(ChangeCall::Rename {
            parent: from.0,
            name: from.1.clone(),
            new_parent: to.0,
            new_name: to.1.clone(),
            mode,
            told: OpenTold::OfAny,
        });
        let answer = self.call(&call);
        let whiteout = match &answer {
            Ok(Answer::Renamed { other: Some(attr), .. }) => attr.inode,
            _ => InodeId(0),
        };
        let (from, to) = ((from.0, &from.1), (to.0, &to.1));
        let wanted = self.state.model.rename(from, to, mode, whiteout);
        assert_eq!(answer.map(|_| ()), wanted, "{call:?}");
    }

    fn run_data(&mut self, step: &Step) {
        match step {
            Step::Commit(index, parts, count) => self.commit(*index, parts, *count),
            Step::Inline(index, offset, length, value) => {
                self.commit_inline(*index, *offset, *length, *value);
            }
            Step::Truncate(index, size) => {
                let inode = self.any_file(*index);
                let changes = AttrChanges { size: Some(*size), ..AttrChanges::default() };
                let answer = self.call(&Call::Change(ChangeCall::SetAttr { inode, changes }));
                let wanted = self.state.model.truncate(inode, *size as usize);
                assert_eq!(answer.map(|_| ()), wanted);
            }
            Step::Fallocate(index, offset, length, mode) => {
                let (inode, offset, length) = (self.any_file(*index), *offset, *length);
                let mode = match mode {
                    0 => FallocateMode::Allocate { keep_size: true },
                    1 => FallocateMode::Allocate { keep_size: false },
                    2 => FallocateMode::Punch,
                    3 => FallocateMode::Zero { keep_size: true },
                    _ => FallocateMode::Zero { keep_size: false },
                };
                let answer =
                    self.call(&Call::Change(ChangeCall::Fallocate { inode, offset, length, mode }));
                let model = &mut self.state.model;
                let wanted = model.fallocate(inode, offset as usize, length as usize, mode);
                assert_eq!(answer.map(|_| ()), wanted);
            }
            Step::Copy(source, source_offset, destination, destination_offset, length) => {
                let (source, destination) = (self.any_file(*source), self.any_file(*destination));
                let call = Call::Change(ChangeCall::CopyRange {
                    source,
                    source_offset: *source_offset,
                    destination,
                    destination_offset: *destination_offset,
                    length: *length,
                });
                let from = (source, *source_offset as usize);
                let to = (destination, *destination_offset as usize);
                // A copy may be short, but not empty: the model copies as much.
                let answer = self.call(&call).map(|answer| match answer {
                    Answer::Copied { length, .. } => length as usize,
                    other => panic!("{other:?}"),
                });
                let asked = answer.unwrap_or(*length as usize);
                let whole = self.state.model.clone().copy(from, to, *length as usize);
                assert_eq!(self.state.model.copy(from, to, asked), answer);
                assert!(whole == answer || asked > 0);
            }
            Step::SetXattr(index, number, value) => {
                let (inode, name, value) = (self.any_inode(*index), name(*number), vec![*value]);
                let (mode, node) =
                    (XattrMode::Set, self.state.model.nodes.get_mut(&inode).unwrap());
                node.xattrs.insert(name.clone(), value.clone());
                self.call(&Call::Change(ChangeCall::SetXattr { inode, name, value, mode }))
                    .unwrap();
            }
            Step::RemoveXattr(index, number) => {
                let (inode, name) = (self.any_inode(*index), name(*number));
                let node = self.state.model.nodes.get_mut(&inode).unwrap();
                let wanted = node.xattrs.remove(&name).map(|_| ()).ok_or(Errno::ENODATA);
                let answer = self.call(&Call::Change(ChangeCall::RemoveXattr { inode, name }));
                assert_eq!(answer.map(|_| ()), wanted);
            }
            _ => unreachable!(),
        }
    }

    fn lease(&mut self, device: DeviceId) {
        match self.call(&Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes: 1 << 20 })) {
            Ok(Answer::Space(grant)) => {
                let ranges = grant.free.into_iter().map(|range| (grant.device, range));
                self.state.free.extend(ranges);
            }
            other => assert_eq!(other, Err(Errno::ENOSPC)),
        }
    }

    /// Ends the session; another one replaces it. Its space must be free again.
    fn new_session(&mut self) {
        self.core.end_session(self.state.session).unwrap();
        let (session, _) = self.core.create_session("node", HostId([2; 16])).unwrap();
        self.state.session = session;
        self.state.free.clear();
        let ids: Vec<InodeId> = self.state.model.nodes.keys().copied().collect();
        for id in ids {
            self.state.model.close(id);
        }
    }

    fn take_blocks(&mut self) -> Option<(AllocationId, u32)> {
        let (device, range) = self.state.free.last_mut()?;
        let allocation = AllocationId { device: *device, block: range.start };
        let blocks = range.count.min(u64::from(ALLOCATION_BLOCKS));
        range.start += blocks;
        range.count -= blocks;
        if range.count == 0 {
            self.state.free.pop();
        }
        Some((allocation, blocks as u32))
    }

    fn commit(&mut self, index: Index, parts: &[(u64, u32, u32)], count: u8) {
        let inode = self.any_file(index);
        if self.state.free.is_empty() {
            self.lease(DeviceId(0));
        }
        let before = self.state.free.clone();
        let named: Vec<_> = (0..count).filter_map(|_| self.take_blocks()).collect();
        if named.is_empty() {
            return;
        }
        let sums = self.make_sums(&named);
        let allocations = named.iter().map(|(allocation, blocks)| NewAllocation {
            allocation: *allocation,
            blocks: *blocks,
            incarnation: Incarnation(7),
            is_flushed: false,
        });
        let extents: Vec<Extent> = parts
            .iter()
            .enumerate()
            .map(|(i, (offset, length, at))| {
                let (allocation, blocks) = named[i % named.len()];
                let at = at % (blocks * BLOCK - length);
                Extent { offset: *offset, length: *length, place: Place { allocation, at } }
            })
            .collect();
        let call = Call::Change(ChangeCall::Commit {
            sums: Sums(sums.iter().copied().flatten().collect()),
            inode,
            generation: self.core.attr(inode).unwrap().generation,
            allocations: allocations.collect(),
            extents: ExtentList(extents.clone()),
            mtime: Some(Timestamp(self.time)),
            kill_privileges: false,
            inline: Vec::new(),
            attributes: None,
            durable: false,
        });
        let answer = self.call(&call);
        let wanted = self.state.model.commit(inode, &extents);
        assert_eq!(answer.map(|_| ()), wanted);
        if wanted.is_err() {
            self.state.free = before;
        } else {
            self.state.sums.extend(blocks_of(&named).zip(sums));
            // The blocks are no longer leased: a second commit must not name them again.
            assert_eq!(self.call(&call), Err(Errno::EINVAL));
        }
    }

    /// Returns sums for the new blocks of two in three commits.
    fn make_sums(&self, named: &[(AllocationId, u32)]) -> Vec<Option<u32>> {
        let first = (self.time as u32).wrapping_mul(1 << 10);
        let sums = blocks_of(named).zip(first..).map(|(_, sum)| (self.time % 3 > 0).then_some(sum));
        sums.collect()
    }

    fn commit_inline(&mut self, index: Index, offset: u32, length: u32, value: u8) {
        let inode = self.any_file(index);
        let bytes = Bytes(vec![value; length as usize]);
        let sum = value.is_multiple_of(2).then(|| checksum(&bytes.0));
        let run = InlineRun { offset, bytes, sum };
        let call = Call::Change(ChangeCall::Commit {
            sums: Sums::default(),
            inode,
            generation: self.core.attr(inode).map(|attr| attr.generation).unwrap_or_default(),
            allocations: Vec::new(),
            extents: ExtentList::default(),
            inline: vec![run],
            mtime: None,
            kill_privileges: false,
            attributes: None,
            durable: false,
        });
        let answer = self.call(&call);
        let (offset, length) = (offset as usize, length as usize);
        let wanted = self.state.model.commit_inline(inode, offset, length, value);
        assert_eq!(answer.map(|_| ()), wanted);
    }
}
