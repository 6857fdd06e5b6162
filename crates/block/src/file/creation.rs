//! Making a backing file: its space is reserved, and on request every block is written once.

use super::{failed, lock};
use crate::error::Error;
use ring::{Buffer, File, OpenOptions};
use std::collections::VecDeque;
use std::path::Path;

/// Bytes per write.
const PIECE_BYTES: u64 = 1 << 20;
/// Writes in flight.
const WRITES_MAX: usize = 8;

/// How much of a new backing file is done beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Its blocks are reserved (fallocate(2)). That takes no time, but the first write of each block
    /// costs the file system more: it has to note that the block is written.
    Reserved,
    /// Its blocks are reserved and written once.
    Written,
}

/// Makes the file `path` of `size` bytes (a positive multiple of 4096) with real data blocks, durably;
/// whatever it held is lost. If they are to be written, calls `progress` with the bytes done after each
/// piece. Without `direct` that goes through the page cache, for file systems that lack `O_DIRECT`.
///
/// # Errors
/// [`Error::Open`], e.g. for lack of space, which is reserved first; [`Error::Locked`] if another process uses
/// the file.
pub async fn create(
    path: impl AsRef<Path>,
    size: u64,
    direct: bool,
    fill: Fill,
    mut progress: impl FnMut(u64),
) -> Result<(), Error> {
    let path = path.as_ref();
    if size == 0 || !size.is_multiple_of(4096) {
        let expected = "is not a positive multiple of 4096";
        return Err(Error::Geometry { what: "device size", value: size, expected });
    }
    let options = OpenOptions { create: true, direct, ..OpenOptions::READ_WRITE };
    let file = File::open(path, options).map_err(failed("create", path))?;
    lock(&file, path)?;
    file.set_size(0).map_err(failed("empty", path))?;
    file.fallocate(0, 0, size).await.map_err(failed("reserve space for", path))?;
    if fill == Fill::Written {
        write_once(&file, size, &mut progress).await.map_err(failed("write", path))?;
    }
    file.sync_all().await.map_err(failed("flush", path))
}

async fn write_once(file: &File, size: u64, progress: &mut impl FnMut(u64)) -> std::io::Result<()> {
    let zeros = Buffer::zeroed(PIECE_BYTES as usize).freeze();
    let mut writes = VecDeque::new();
    let (mut started, mut done) = (0, 0);
    while done < size {
        while started < size && writes.len() < WRITES_MAX {
            let len = PIECE_BYTES.min(size - started);
            writes.push_back((file.write_at(zeros.slice(..len as usize), started), len));
            started += len;
        }
        if let Some((write, len)) = writes.pop_front() {
            write.await.0?;
            done += len;
            progress(done);
        }
    }
    Ok(())
}
