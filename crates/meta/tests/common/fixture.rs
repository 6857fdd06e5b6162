//! A core on a store in memory, with a device and a session.

use meta::store::{CrashPoint, MemoryStore};
use meta::tree::{Boot, Context, Core};
use protocol::attr::AttrChanges;
use protocol::client::{Answer, Call, ChangeCall, Creation};
use protocol::space::{BlockRange, DeviceAddress, DeviceInfo, NewAllocation, Transport};
use protocol::{
    AllocationId, DeviceId, Errno, Extent, ExtentList, FreeEpoch, Generation, HostId, Incarnation,
    InodeId, Place, Rights, SessionId, Timestamp,
};
use uuid::Uuid;

/// Block size, in bytes.
pub(crate) const BLOCK_BYTES: u32 = 32768;

/// Blocks of the device: eight whole segments.
const BLOCKS: u64 = 8 * 2048;

pub(crate) struct Fixture {
    pub(crate) core: Core,
    pub(crate) store: MemoryStore,
    pub(crate) session: SessionId,
    pub(crate) open: Vec<(InodeId, SessionId)>,
    pub(crate) last_allocation: AllocationId,
    free: Vec<BlockRange>,
    time: i64,
}

pub(crate) fn boot(number: u128) -> Boot {
    Boot {
        boot: Uuid::from_u128(number),
        file_system: Uuid::from_u128(2),
        now: Timestamp(0),
        root: (0o755, 0, 0),
    }
}

pub(crate) fn create(parent: InodeId, name: &str) -> Call {
    Call::Change(ChangeCall::Create {
        parent,
        name: name.as_bytes().to_vec(),
        creation: Creation::File,
        mode: 0o640,
        uid: 5,
        gid: 6,
        rights: Rights::NONE,
    })
}

pub(crate) fn commit(
    inode: InodeId,
    generation: Generation,
    allocations: Vec<NewAllocation>,
    extents: Vec<Extent>,
) -> Call {
    Call::Change(ChangeCall::Commit {
        sums: protocol::sums::Sums::default(),
        inode,
        generation,
        allocations,
        extents: ExtentList(extents),
        mtime: None,
        kill_privileges: false,
        inline: Vec::new(),
        attributes: None,
        durable: false,
    })
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture::with(false)
    }

    /// Returns a file system with one device, which is memory or not.
    pub(crate) fn with(is_volatile: bool) -> Fixture {
        let store = MemoryStore::new();
        let (mut core, _) = Core::open(Box::new(store.clone()), &boot(1)).unwrap();
        let device = DeviceInfo {
            device: DeviceId(0),
            uuid: Uuid::from_u128(100),
            node: "node".to_owned(),
            address: DeviceAddress {
                traddr: String::new(),
                subnqn: String::new(),
                nsid: 1,
                transport: Transport::Tcp,
            },
            block_size: BLOCK_BYTES,
            blocks: BLOCKS,
            incarnation: Incarnation(7),
            is_volatile,
            online: true,
        };
        let device = core.register_device(&device).unwrap();
        core.set_online(device, true);
        let (session, _) = core.create_session("node", HostId([1; 16])).unwrap();
        core.flush().unwrap();
        let last_allocation = AllocationId { device, block: 0 };
        Fixture {
            core,
            store,
            session,
            open: Vec::new(),
            last_allocation,
            free: Vec::new(),
            time: 1,
        }
    }

    pub(crate) fn reopen(&mut self, at: CrashPoint) {
        self.store = self.store.crashed(at);
        self.core = Core::open(Box::new(self.store.clone()), &boot(1)).unwrap().0;
        self.core.set_online(DeviceId(0), true);
    }

    pub(crate) fn call_as(&mut self, session: SessionId, call: &Call) -> Result<Answer, Errno> {
        self.time += 1;
        let open = &self.open;
        let openers = |inode: InodeId| {
            open.iter().filter(|(id, _)| *id == inode).map(|(_, session)| *session).collect()
        };
        let context = Context { session, now: Timestamp(self.time), openers: &openers };
        self.core.execute(&context, call).map(|outcome| outcome.answer)
    }

    pub(crate) fn call(&mut self, call: &Call) -> Result<Answer, Errno> {
        self.call_as(self.session, call)
    }

    pub(crate) fn other_session(&mut self) -> SessionId {
        self.core.create_session("other", HostId([2; 16])).unwrap().0
    }

    fn made(&mut self, call: &Call) -> InodeId {
        match self.call(call) {
            Ok(Answer::Entry(attr)) => attr.inode,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn file(&mut self, name: &str) -> InodeId {
        self.made(&create(InodeId::ROOT, name))
    }

    pub(crate) fn directory(&mut self, name: &str) -> InodeId {
        self.made(&Call::Change(ChangeCall::Create {
            parent: InodeId::ROOT,
            name: name.as_bytes().to_vec(),
            creation: Creation::Directory,
            mode: 0o750,
            uid: 5,
            gid: 6,
            rights: Rights::NONE,
        }))
    }

    pub(crate) fn take_block(&mut self) -> AllocationId {
        let device = DeviceId(0);
        self.free.retain(|range| range.count > 0);
        if self.free.is_empty() {
            let call = Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes: 1 });
            let Ok(Answer::Space(grant)) = self.call(&call) else { panic!() };
            self.free = grant.free;
        }
        let range = &mut self.free[0];
        let block = range.start;
        range.start += 1;
        range.count -= 1;
        AllocationId { device, block }
    }

    /// Commits an extent in an allocation of its own.
    pub(crate) fn write(&mut self, inode: InodeId, offset: u64, length: u32) {
        let allocation = self.take_block();
        self.last_allocation = allocation;
        let new =
            NewAllocation { allocation, blocks: 1, incarnation: Incarnation(7), is_flushed: false };
        let extent = Extent { offset, length, place: Place { allocation, at: 0 } };
        let generation = self.core.attr(inode).unwrap().generation;
        self.call(&commit(inode, generation, vec![new], vec![extent])).unwrap();
    }

    /// Commits blocks that are adjacent on the device to these blocks of a file; returns the first.
    pub(crate) fn write_blocks(&mut self, inode: InodeId, places: &[u64]) -> AllocationId {
        let blocks: Vec<_> = places.iter().map(|_| self.take_block()).collect();
        let first = blocks[0];
        let extent = |(block, offset): (&AllocationId, &u64)| {
            let at = (block.block - first.block) as u32 * BLOCK_BYTES;
            let place = Place { allocation: first, at };
            Extent { offset: *offset, length: BLOCK_BYTES, place }
        };
        let extents: Vec<_> = blocks.iter().zip(places).map(extent).collect();
        let new = NewAllocation {
            allocation: first,
            blocks: blocks.len() as u32,
            incarnation: Incarnation(7),
            is_flushed: false,
        };
        let generation = self.core.attr(inode).unwrap().generation;
        self.call(&commit(inode, generation, vec![new], extents)).unwrap();
        first
    }

    pub(crate) fn truncate(&mut self, inode: InodeId, size: u64) {
        let changes = AttrChanges { size: Some(size), ..AttrChanges::default() };
        self.call(&Call::Change(ChangeCall::SetAttr { inode, changes })).unwrap();
    }

    /// Does all background work, as if all reads had ended.
    pub(crate) fn reclaim_all(&mut self) {
        // Blocks that the first round gives up become free in the second.
        for _ in 0..2 {
            let sessions: Vec<_> = self.core.sessions().map(|(id, _)| id).collect();
            for session in sessions {
                self.core.ended_through(session, FreeEpoch(u64::MAX));
            }
            self.core.flush().unwrap();
            let stored = self.core.stored_free_epoch();
            self.core.synced(stored);
            while self.core.reclaim_step(1000).unwrap() {}
        }
    }

    pub(crate) fn check(&self) {
        let problems = self.core.check().unwrap();
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
