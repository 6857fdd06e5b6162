//! Copying a range of bytes from one file into another.

use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::sys;

/// Bytes that are copied through memory at a time, where the kernel does not copy.
const BUFFER_BYTES: usize = 256 << 10;

/// Copies a range, or the first part of it: at most up to the next hole of the source if
/// `keeps_holes`, since these are left out. Returns how many bytes of the range were dealt with.
///
/// # Errors
/// Errors of the file systems; `EIO` if the source ends before the range does.
pub(crate) fn copy_range(
    from: BorrowedFd<'_>,
    position: u64,
    to: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    keeps_holes: bool,
) -> Result<u64, Errno> {
    let mut end = position + length;
    let mut at = position;
    if keeps_holes {
        match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) if data >= end => return Ok(length),
            Ok(data) => {
                at = at.max(data);
                let hole = rustix::fs::seek(from, SeekFrom::Hole(at)).unwrap_or(end);
                end = end.min(hole);
            }
            // A hole up to the end; or it has become shorter.
            Err(Errno::NXIO) if sys::stat_at(from, b"")?.size < end => {
                return Err(Errno::IO);
            }
            Err(Errno::NXIO) => return Ok(length),
            // A file system that knows of no holes.
            Err(_) => {}
        }
    }
    while at < end {
        let to_offset = offset + (at - position);
        let left = (end - at) as usize;
        let (mut source, mut target) = (at, to_offset);
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), left);
        let count = match copied {
            // It has become shorter: a lower file must not change below a union.
            Ok(0) => return Err(Errno::IO),
            Ok(count) => count as u64,
            Err(Errno::INTR) => 0,
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                through_memory(from, at, to, to_offset, left)?
            }
            Err(errno) => return Err(errno),
        };
        at += count;
    }
    Ok(end - position)
}

/// Copies at most a buffer's bytes.
fn through_memory(
    from: BorrowedFd<'_>,
    at: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
    left: usize,
) -> Result<u64, Errno> {
    let mut buffer = vec![0; left.min(BUFFER_BYTES)];
    let count = rustix::io::pread(from, &mut buffer[..], at)?;
    if count == 0 {
        return Err(Errno::IO);
    }
    sys::write_all_at(to, &buffer[..count], to_offset)?;
    Ok(count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    // Goal: steps of any size over a file with holes make a copy with the same bytes, each step
    // standing for at least one byte.
    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn steps_copy_everything(
            extents in prop::collection::vec((0u64..40, 1u64..9, 1u8..255), 0..8),
            step in 1u64..50_000,
            keeps_holes: bool,
        ) {
            let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
            let size = 50 * 4096;
            from.set_len(size).unwrap();
            to.set_len(size).unwrap();
            for (start, blocks, byte) in extents {
                from.write_all_at(&vec![byte; (blocks * 4096) as usize], start * 4096).unwrap();
            }
            let mut at = 0;
            while at < size {
                let length = step.min(size - at);
                let done =
                    copy_range(from.as_fd(), at, to.as_fd(), at, length, keeps_holes).unwrap();
                prop_assert!(done > 0 && done <= length);
                at += done;
            }
            let (mut one, mut two) = (vec![0; size as usize], vec![1; size as usize]);
            from.read_exact_at(&mut one, 0).unwrap();
            to.read_exact_at(&mut two, 0).unwrap();
            prop_assert_eq!(one, two);
        }
    }
}
