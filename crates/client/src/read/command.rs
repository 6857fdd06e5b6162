//! The device commands of a read, and which of them can read in place.

use crate::read::plan::ReadPart;
use protocol::{DeviceId, Errno};
use reactor::RegionSlice;
use std::ops::Range;

/// Largest read from a device as one command.
const COMMAND_BYTES_MAX: u64 = 1 << 20;

/// Longest gap between two wanted ranges that one command reads as well.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// A read of whole blocks.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) device: DeviceId,
    /// Byte addresses.
    pub(super) range: Range<u64>,
    /// Where all of the bytes go; without it they go to memory of their own.
    pub(super) room: Option<RegionSlice>,
}

/// Returns the commands that fetch all parts on devices: sorted, without overlap.
pub(super) fn of_parts(
    parts: &[ReadPart],
    block_size: impl Fn(DeviceId) -> Result<u32, Errno>,
) -> Result<Vec<Command>, Errno> {
    let mut wanted: Vec<Command> = Vec::new();
    for part in parts {
        if let ReadPart::Device { device, address, length } = part {
            let block = u64::from(block_size(*device)?);
            let start = address / block * block;
            let end = (address + length).next_multiple_of(block);
            wanted.push(Command { device: *device, range: start..end, room: None });
        }
    }
    wanted.sort_by_key(|command| (command.device, command.range.start));
    let mut commands: Vec<Command> = Vec::new();
    for next in wanted {
        match commands.last_mut() {
            Some(last)
                if last.device == next.device
                    && next.range.start <= last.range.end + GAP_BYTES_MAX
                    && next.range.end.max(last.range.end) - last.range.start
                        <= COMMAND_BYTES_MAX =>
            {
                last.range.end = last.range.end.max(next.range.end);
            }
            _ => commands.push(next),
        }
    }
    Ok(commands)
}

/// Returns the index of the command that fetches an address.
pub(super) fn index_of(commands: &[Command], device: DeviceId, address: u64) -> usize {
    let key = (device, address);
    commands.partition_point(|command| (command.device, command.range.start) <= key) - 1
}

/// Gives a command its place in `room` if all bytes that it reads belong there one after the other.
/// Bytes of the last block behind the end of the read may follow, because nothing else does.
pub(super) fn place(commands: &mut [Command], parts: &[ReadPart], room: &RegionSlice) {
    // For each command: where in `room` it begins, and how far its parts follow on each other.
    let mut found: Vec<Option<(u64, u64)>> = vec![None; commands.len()];
    let mut is_placed = vec![true; commands.len()];
    let mut at = 0;
    for part in parts {
        if let ReadPart::Device { device, address, length } = part {
            let index = index_of(commands, *device, *address);
            let skipped = address - commands[index].range.start;
            let (begin, done) = found[index].unwrap_or((at, 0));
            is_placed[index] &= skipped == done && begin + skipped == at;
            found[index] = Some((begin, done + length));
        }
        at += part.len();
    }
    for ((command, found), is_placed) in commands.iter_mut().zip(found).zip(is_placed) {
        let Some((begin, done)) = found else { continue };
        let length = command.range.end - command.range.start;
        let is_whole = done == length || begin + done == at;
        if is_placed && is_whole && begin + length <= room.len() as u64 {
            command.room = Some(room.range(begin as usize, length as usize));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::{Buffer, Region};

    const DEVICE: DeviceId = DeviceId(1);
    const BLOCK: u64 = 4096;

    fn device(address: u64, length: u64) -> ReadPart {
        ReadPart::Device { device: DEVICE, address, length }
    }

    fn placed(parts: &[ReadPart], room_blocks: u64) -> Vec<Option<usize>> {
        let region = Region::new((room_blocks * BLOCK) as usize).unwrap();
        let room = region.range(0, region.len());
        let base = room.as_ptr().addr();
        let mut commands = of_parts(parts, |_| Ok(BLOCK as u32)).unwrap();
        place(&mut commands, parts, &room);
        let offset = |room: &RegionSlice| room.as_ptr().addr() - base;
        commands.iter().map(|command| command.room.as_ref().map(offset)).collect()
    }

    /// Goal: whole blocks that follow on each other on the device as in the file are read in place,
    /// with any parts before and behind them.
    #[test]
    fn what_lies_in_order_is_read_in_place() {
        assert_eq!(placed(&[device(0, 4 * BLOCK)], 4), [Some(0)]);
        assert_eq!(placed(&[device(BLOCK, BLOCK), device(2 * BLOCK, BLOCK)], 2), [Some(0)]);
        let far = 64 * BLOCK;
        let parts = [device(far, BLOCK), ReadPart::Hole(BLOCK), device(0, BLOCK)];
        assert_eq!(placed(&parts, 3), [Some(2 * BLOCK as usize), Some(0)]);
        let memory = ReadPart::Memory(Buffer::zeroed(100).freeze());
        assert_eq!(placed(&[memory, device(0, BLOCK)], 2), [Some(100)]);
    }

    /// Goal: a block that belongs to the read only in part is read in place only if the memory
    /// behind it exists and no other part uses it.
    #[test]
    fn partial_blocks_never_overwrite_others() {
        assert_eq!(placed(&[device(0, 5000)], 2), [Some(0)]);
        assert_eq!(placed(&[device(0, 5000)], 1), [None]);
        assert_eq!(placed(&[device(0, 5000), ReadPart::Hole(1)], 2), [None]);
        assert_eq!(placed(&[device(10, 5000)], 4), [None]);
    }

    /// Goal: a command is not read in place if it has its parts in another order than the file, a
    /// part twice, or something between its parts.
    #[test]
    fn other_orders_are_copied() {
        assert_eq!(placed(&[device(BLOCK, BLOCK), device(0, BLOCK)], 2), [None]);
        assert_eq!(placed(&[device(0, BLOCK), device(0, BLOCK)], 2), [None]);
        assert_eq!(placed(&[device(0, BLOCK), device(2 * BLOCK, BLOCK)], 3), [None]);
        let between = [device(0, BLOCK), ReadPart::Hole(BLOCK), device(BLOCK, BLOCK)];
        assert_eq!(placed(&between, 3), [None]);
    }
}
