//! Calls that no correct client sends.

use super::Service;
use super::files::{BLOCK, Exchange, block_at, new_allocation, with_sums};
use super::fixture::{self, BLOCK_BYTES, Fixture, commit};
use meta::tree::SlotState;
use protocol::client::{Answer, Call, ChangeCall, OpenTold, ReadCall, Response, Slot};
use protocol::inline::{Bytes, InlineRun};
use protocol::space::{DeviceInfo, NewAllocation};
use protocol::sums::{Sums, checksum};
use protocol::{AllocationId, DeviceId, Errno, Extent, ExtentList, Incarnation, InodeId, Place};

impl Service {
    /// Checks that a call fails and changes nothing in the store.
    fn refused(&mut self, call: &Call) {
        self.fixture.core.flush().expect("a commit");
        let before = self.fixture.store.records();
        let answer = self.fixture.call(call);
        assert!(answer.is_err(), "{call:?} succeeds: {answer:?}");
        self.fixture.core.flush().expect("a commit");
        assert!(self.fixture.store.records() == before, "{call:?} fails and changes the store");
    }

    /// A commit that lies about its blocks or their sums.
    pub(super) fn wrong_commit(&mut self) {
        let (mine, others) = (self.make(), self.make());
        self.write_to(others, 0..1);
        let (foreign, _) = self.files[&others].blocks[&0];
        let foreign = AllocationId { device: DeviceId(0), block: foreign };
        let block = self.fixture.take_block();
        let (good, fine) = (new_allocation(block), block_at(0, block));
        let generation = self.generation(mine);
        let other = self.fixture.other_session();
        let lease = Call::Change(ChangeCall::LeaseSpace { device: block.device, wanted_bytes: 1 });
        let Ok(Answer::Space(grant)) = self.fixture.call_as(other, &lease) else {
            panic!("no space")
        };
        let unleased = AllocationId { device: grant.device, block: grant.free[0].start };
        let earlier = NewAllocation { incarnation: Incarnation(6), ..good };
        let (allocations, extents, sums): (Vec<_>, Vec<Extent>, &[u32]) = match self.random.below(8)
        {
            0 => (vec![good], vec![fine, block_at(1, foreign)], &[1]),
            1 => (vec![new_allocation(unleased)], vec![], &[1]),
            2 => (vec![new_allocation(unleased)], vec![block_at(0, unleased)], &[1]),
            3 => (vec![earlier], vec![fine], &[1]),
            4 => (vec![good, good], vec![fine], &[1, 2]),
            5 => (vec![good], vec![fine], &[1, 2]),
            6 => (vec![], vec![fine], &[]),
            _ => {
                self.fixture.core.end_session(other).expect("an end");
                return self.late_commit(mine, block);
            }
        };
        let call = commit(mine, generation, allocations, extents);
        self.refused(&with_sums(call, sums));
        let call = with_sums(commit(mine, generation, vec![good], vec![fine]), &[1]);
        let answer = self.fixture.call_as(other, &call);
        assert_eq!(answer, Err(Errno::EINVAL), "blocks that another session leases");
        self.fixture.core.end_session(other).expect("an end");
    }

    /// A commit of data from before a truncation is dropped, and not refused.
    fn late_commit(&mut self, inode: InodeId, block: AllocationId) {
        let generation = self.generation(inode);
        let extents = vec![block_at(0, block)];
        let call = commit(inode, generation, vec![new_allocation(block)], extents.clone());
        self.call(&with_sums(call, &[1]));
        self.fixture.truncate(inode, 0);
        let late = commit(inode, generation, vec![], extents);
        let Answer::Attr(attr) = self.call(&late) else { panic!("no attributes") };
        assert_eq!(attr.size, 0, "a commit from before a truncation is executed");
    }

    /// An exchange of extents that would lose or add bytes, or make them less safe.
    pub(super) fn wrong_exchange(&mut self) {
        let Some(mut exchange) = self.exchange() else { return };
        let harm = self.random.below(6);
        let Exchange { old, allocations, new, sums, .. } = &mut exchange;
        match harm {
            0 => new[0].length -= 1,
            1 => new[0].offset += 1,
            2 => allocations[0].is_flushed = false,
            3 => old.clear(),
            4 => sums.push(1),
            _ => return self.exchange_into_memory(exchange),
        }
        self.refused(&exchange.call());
    }

    /// Data of a disk must not move into memory.
    fn exchange_into_memory(&mut self, mut exchange: Exchange) {
        let known = self.fixture.core.devices().remove(0);
        let uuid = uuid::Uuid::from_u128(101);
        let memory = DeviceInfo { uuid, is_volatile: true, ..known };
        let device = self.fixture.core.register_device(&memory).expect("a device");
        self.fixture.core.set_online(device, true);
        let wanted_bytes = 16 * BLOCK;
        let call = Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes });
        if let Answer::Space(grant) = self.call(&call)
            && grant.device == device
            && let Some(range) = grant.free.iter().find(|range| range.count >= 16)
        {
            let allocation = AllocationId { device: grant.device, block: range.start };
            exchange.allocations[0].allocation = allocation;
            exchange.new.iter_mut().for_each(|extent| extent.place.allocation = allocation);
            self.refused(&exchange.call());
            let free = grant.free;
            self.call(&Call::Change(ChangeCall::ReturnSpace { device: grant.device, free }));
        }
        self.fixture.core.set_online(device, false);
    }

    /// A device loses data with its power, and a client then asks to exchange that data for a copy.
    /// The service must refuse: the copy has the bytes of after the loss. This scene has a store of
    /// its own.
    pub(super) fn lost_exchange(&mut self) {
        let mut fixture = Fixture::new();
        let inode = fixture.file("lost");
        let count = self.random.between(1, 4);
        let places: Vec<u64> = (0..count).map(|slot| slot * BLOCK).collect();
        fixture.write_blocks(inode, &places);
        let is_flushed = self.random.chance(30);
        let core = &mut fixture.core;
        if is_flushed {
            let through = core.end_flush_epoch().expect("an epoch");
            core.flushed(DeviceId(0), Incarnation(7), through, true).expect("a flush");
        }
        let read = Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: count * BLOCK });
        let Ok(Answer::Extents { extents: old, .. }) = fixture.call(&read) else {
            panic!("no extents")
        };
        let core = &mut fixture.core;
        let generation = core.attr(inode).expect("a file").generation;
        let known = core.devices().remove(0);
        let incarnation = Incarnation(8);
        core.register_device(&DeviceInfo { incarnation, ..known }).expect("a device");
        core.set_online(DeviceId(0), true);
        let taken: Vec<AllocationId> = places.iter().map(|_| fixture.take_block()).collect();
        let first = taken[0];
        let blocks = count as u32;
        let copy = NewAllocation { allocation: first, blocks, incarnation, is_flushed: true };
        let new = places.iter().zip(0..).map(|(offset, index): (&u64, u32)| {
            let place = Place { allocation: first, at: index * BLOCK_BYTES };
            Extent { offset: *offset, length: BLOCK_BYTES, place }
        });
        let (new, allocations) = (ExtentList(new.collect()), vec![copy]);
        let sums = Sums::default();
        let compact = ChangeCall::Compact { inode, generation, old, allocations, sums, new };
        let answer = fixture.call(&Call::Change(compact)).map(|_| ());
        let wanted = if is_flushed { Ok(()) } else { Err(Errno::EAGAIN) };
        assert_eq!(answer, wanted, "an exchange of data; flushed before the loss: {is_flushed}");
        fixture.check();
    }

    /// A call that is older than the last of its slot is neither executed nor answered, and its
    /// answer replaces none.
    pub(super) fn old_calls(&mut self) {
        let session = self.fixture.session;
        let number = self.random.below(200) as u16;
        self.names += 1;
        let first = 10 + self.names * 100;
        let slot = |sequence| Slot { slot: number, sequence };
        let answer =
            |errno| Response { result: Err(errno), grants: Vec::new(), changed: Vec::new() };
        let core = &mut self.fixture.core;
        assert_eq!(core.check_slot(session, slot(first)), Ok(SlotState::New));
        core.record_reply(session, slot(first), &answer(Errno::ENOENT)).expect("a reply");
        core.record_reply(session, slot(first - 5), &answer(Errno::EEXIST)).expect("a reply");
        if self.random.chance(50) {
            self.kill();
        }
        let core = &self.fixture.core;
        let repeated = SlotState::Repeated(Box::new(answer(Errno::ENOENT)));
        assert_eq!(core.check_slot(session, slot(first)), Ok(repeated), "a repeated call");
        for older in [first - 1, first - 5] {
            assert_eq!(core.check_slot(session, slot(older)), Err(Errno::EPROTO), "an older call");
        }
        assert_eq!(core.check_slot(session, slot(first + 1)), Ok(SlotState::New));
    }

    /// A directory with an entry cannot be removed.
    pub(super) fn full_directory(&mut self) {
        let (name, inner) = (self.new_name(), self.new_name());
        let parent = self.fixture.directory(&name);
        self.call(&fixture::create(parent, &inner));
        let rmdir = Call::Change(ChangeCall::Rmdir {
            parent: InodeId::ROOT,
            name: name.clone().into_bytes(),
        });
        self.refused(&rmdir);
        let name = inner.into_bytes();
        self.call(&Call::Change(ChangeCall::Unlink { parent, name, told: OpenTold::OfAny }));
        self.call(&rmdir);
    }

    /// Returns a commit of inline bytes.
    pub(super) fn inline_commit(&self, inode: InodeId, bytes: &[u8], sum: Option<u32>) -> Call {
        let mut call = commit(inode, self.generation(inode), Vec::new(), Vec::new());
        if let Call::Change(ChangeCall::Commit { inline, extents, .. }) = &mut call {
            *extents = ExtentList::default();
            inline.push(InlineRun { offset: 0, bytes: Bytes(bytes.to_vec()), sum });
        }
        call
    }

    /// Inline bytes that do not have their writer's sum are refused.
    pub(super) fn wrong_inline(&mut self, inode: InodeId, bytes: &[u8]) {
        let call = self.inline_commit(inode, bytes, Some(checksum(bytes) ^ 1));
        self.refused(&call);
    }
}
