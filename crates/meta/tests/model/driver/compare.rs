//! Compares the core with the model: the tree, the bytes of files, and the blocks of devices.

use super::super::tree::{Byte, INLINE};
use super::{BLOCK, Driver};
use protocol::client::{Answer, Call, Creation, Name, ReadCall};
use protocol::sums::{BlockSums, checksum};
use protocol::{AllocationId, Attr, DeviceId, Extent, FreeEpoch, InodeId};
use std::collections::{BTreeMap, BTreeSet};

impl Driver {
    /// Checks that every block is free, leased, or holds a byte of a file, once all resting blocks
    /// are free.
    pub(crate) fn compare_space(&mut self) {
        for _ in 0..2 {
            self.core.ended_through(self.state.session, FreeEpoch(u64::MAX));
            self.core.flush().unwrap();
            self.core.synced(self.core.stored_free_epoch());
            while self.core.reclaim_step(60).unwrap() {}
        }
        let bytes = self.state.model.nodes.values().flat_map(|node| node.bytes.iter().flatten());
        let live: BTreeSet<_> =
            bytes.map(|(id, at)| (id.device, id.block + u64::from(at / BLOCK))).collect();
        for device in [DeviceId(0), DeviceId(1)] {
            let usage = self.core.device_use(device).unwrap();
            let live = live.iter().filter(|(on, _)| *on == device).count() as u64;
            let free = self.state.free.iter().filter(|(on, _)| *on == device);
            let leased: u64 = free.map(|(_, range)| range.count).sum();
            assert_eq!((usage.allocated(), usage.leased, usage.resting), (live, leased, 0));
        }
    }

    /// Compares the whole tree.
    pub(crate) fn compare(&mut self) {
        let model = self.state.model.clone();
        for (id, node) in &model.nodes {
            let attr = self.core.attr(*id).unwrap();
            assert_eq!(attr.nlink, node.nlink, "{id}");
            let size = match &node.creation {
                Creation::Directory => node.entries.len(),
                Creation::Symlink(target) => target.len(),
                _ => node.bytes.len(),
            };
            assert_eq!(attr.size, size as u64, "{id}");
            assert_eq!(attr.allocated_bytes, node.held(), "{id}");
            match node.creation {
                Creation::Directory => self.compare_directory(*id, &node.entries),
                Creation::File => assert_eq!(self.bytes(attr), node.bytes, "{id}"),
                _ => {}
            }
            for (name, value) in &node.xattrs {
                let call = Call::Read(ReadCall::GetXattr { inode: *id, name: name.clone() });
                assert_eq!(self.call(&call), Ok(Answer::Bytes(value.clone())));
            }
            let names: Vec<Name> = node.xattrs.keys().cloned().collect();
            assert_eq!(self.call(&Call::Read(ReadCall::ListXattr(*id))), Ok(Answer::Names(names)));
        }
        let known: BTreeSet<InodeId> = model.nodes.keys().copied().collect();
        let last = known.last().map_or(1, |id| id.0);
        for id in 1..=last {
            assert_eq!(self.core.attr(InodeId(id)).is_ok(), known.contains(&InodeId(id)));
        }
    }

    fn compare_directory(&mut self, id: InodeId, entries: &BTreeMap<Name, InodeId>) {
        let mut listed = BTreeMap::new();
        let mut after = 0;
        loop {
            let call = Call::Read(ReadCall::ReadDir { inode: id, after, count_max: 2 });
            let Ok(Answer::Entries { entries, end }) = self.call(&call) else { panic!() };
            for entry in entries {
                assert!(entry.cookie > after);
                after = entry.cookie;
                assert_eq!(self.core.attr(entry.attr.inode), Ok(entry.attr));
                assert!(listed.insert(entry.name, entry.attr.inode).is_none());
            }
            if end {
                break;
            }
        }
        assert_eq!(&listed, entries);
        for (name, inode) in entries {
            assert_eq!(self.state.model.lookup(id, name), Ok(Some(*inode)));
            let call = Call::Read(ReadCall::Lookup { parent: id, name: name.clone() });
            let Ok(Answer::Entry(attr)) = self.call(&call) else { panic!() };
            assert_eq!(attr.inode, *inode);
        }
    }

    /// Returns a file's bytes, according to its extents.
    fn bytes(&mut self, attr: Attr) -> Vec<Byte> {
        let mut bytes = vec![None; attr.size as usize];
        let mut at = 0;
        while at < attr.size {
            let call = Call::Read(ReadCall::ReadExtents {
                inode: attr.inode,
                offset: at,
                length: attr.size - at,
            });
            let Ok(Answer::Extents { extents, covered_to, inline, inline_sum, sums, .. }) =
                self.call(&call)
            else {
                panic!()
            };
            self.compare_sums(&extents.0, &sums);
            assert_eq!(checksum(&inline.0), inline_sum);
            assert!(inline.0.len() as u64 <= attr.size);
            for (place, byte) in inline.0.iter().enumerate().skip(at as usize) {
                bytes[place] = (*byte > 0).then_some((INLINE, u32::from(*byte)));
            }
            for extent in extents.0 {
                assert!(extent.end() <= attr.size);
                for i in 0..extent.length {
                    let byte = (extent.place.allocation, extent.place.at + i);
                    bytes[extent.offset as usize + i as usize] = Some(byte);
                }
            }
            assert!(covered_to > at);
            at = covered_to;
        }
        bytes
    }

    /// Checks that every block that extents touch has the sum of its commit, and that the answer
    /// has no other sums.
    fn compare_sums(&self, extents: &[Extent], answered: &BlockSums) {
        let answered: BTreeMap<_, _> =
            answered.each().map(|(device, block, sum)| ((device, block), sum)).collect();
        let mut wanted = BTreeMap::new();
        for extent in extents {
            let AllocationId { device, block } = extent.place.allocation;
            let touched =
                extent.place.at / BLOCK..(extent.place.at + extent.length).div_ceil(BLOCK);
            for block in touched.map(|at| block + u64::from(at)) {
                let sum = self.state.sums[&(device, block)];
                wanted.extend(sum.map(|sum| ((device, block), sum)));
            }
        }
        assert_eq!(answered, wanted);
    }
}
