//! Creates a backing file: its space is reserved, and on request every block is written once.

use super::{failed, lock};
use crate::error::Error;
use reactor::{Buffer, File, OpenOptions};
use std::collections::VecDeque;
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;

/// Bytes per write.
const PIECE_BYTES: u64 = 1 << 20;
/// Number of writes in flight.
const WRITES_MAX: usize = 8;

/// The preparation of a new backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Its blocks are reserved (fallocate(2)). That takes no time, but the first write of each
    /// block is slower, because the file system must record that the block is written.
    Reserved,
    /// Its blocks are reserved and written once.
    Written,
}

/// Creates the file `path` of `size` bytes (a positive multiple of 4096) with real data blocks,
/// durably; its old content is lost. If the blocks are to be written, calls `progress` with the
/// bytes done after each piece. Without `direct` the writes go through the page cache, for file
/// systems without `O_DIRECT`.
///
/// # Errors
/// [`Error::Open`], e.g. for lack of space, because space is reserved first; [`Error::Locked`] if
/// another process uses the file.
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
        let mut progress = |done| {
            progress(done);
            ControlFlow::Continue(())
        };
        write_once(&file, 0..size, &mut progress).await.map_err(failed("write", path))?;
    }
    file.sync_all().await.map_err(failed("flush", path))
}

/// Extends a file: `from` to `size` bytes get real data blocks that are written once, durably. Does
/// not lock the file, because the process uses it already. Calls `progress` with the bytes done
/// after each piece; it may stop the extension. After an error the file has its former size. If the
/// future is dropped, the file may stay longer.
///
/// # Errors
/// [`Error::Open`], e.g. for lack of space, or if `progress` stopped it; [`Error::Geometry`] unless
/// both sizes are multiples of 4096, in order.
pub async fn grow(
    path: impl AsRef<Path>,
    (from, size): (u64, u64),
    direct: bool,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), Error> {
    let path = path.as_ref();
    if size <= from || !size.is_multiple_of(4096) || !from.is_multiple_of(4096) {
        let expected = "is not more than the present size, and a multiple of 4096 as that";
        return Err(Error::Geometry { what: "device size", value: size, expected });
    }
    let options = OpenOptions { direct, ..OpenOptions::READ_WRITE };
    let file = File::open(path, options).map_err(failed("open", path))?;
    let result = async {
        file.fallocate(0, from, size - from).await.map_err(failed("reserve space for", path))?;
        write_once(&file, from..size, &mut progress).await.map_err(failed("write", path))?;
        file.sync_all().await.map_err(failed("flush", path))
    };
    let result = result.await;
    if result.is_err() {
        let _ = file.set_size(from);
    }
    result
}

/// Truncates a file durably: data behind `size` bytes is lost.
///
/// # Errors
/// [`Error::Open`].
pub async fn cut(path: impl AsRef<Path>, size: u64) -> Result<(), Error> {
    let path = path.as_ref();
    let file = File::open(path, OpenOptions::READ_WRITE).map_err(failed("open", path))?;
    file.set_size(size).map_err(failed("cut", path))?;
    file.sync_all().await.map_err(failed("flush", path))
}

/// Writes zeros. When it returns, even after an error, no write is in flight: the caller may cut the
/// file.
async fn write_once(
    file: &File,
    range: Range<u64>,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> io::Result<()> {
    let zeros = Buffer::zeroed(PIECE_BYTES as usize).freeze();
    let mut writes = VecDeque::new();
    let (mut started, mut done) = (range.start, range.start);
    let mut result = Ok(());
    loop {
        while result.is_ok() && started < range.end && writes.len() < WRITES_MAX {
            let len = PIECE_BYTES.min(range.end - started);
            writes.push_back((file.write_at(zeros.slice(..len as usize), started), len));
            started += len;
        }
        let Some((write, len)) = writes.pop_front() else { return result };
        let written = write.await.0;
        done += len;
        result = result.and(written.map(drop)).and_then(|()| match progress(done - range.start) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(io::Error::other("it was stopped")),
        });
    }
}
