//! One file's filling: the work file, its first phase, and what the second has to catch up with.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use reactor::local::Permit;
use reactor::{File, Handle};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::worker::{CopyMethod, Step};
use super::{PartialFiles, Stop, Wanted, Whole, Worker};
use crate::journal::{Piece, SegmentId, Source};
use crate::store::{Partial, PartialContent, file_of};
use crate::sys;
use crate::sys::errno_of;
use crate::tree::{Node, Tree};

/// The attribute of a work file that says how far it is filled, durably; decimal.
const PROGRESS: &[u8] = b"tsumugi.fill";
/// After this many bytes of a file, the copied bytes are made durable and the progress is noted.
const CHECKPOINT_BYTES: u64 = 64 << 20;
/// After this many bytes, the copied bytes are written to the device: writing more dirty memory
/// later would slow other programs down.
const DIRTY_BYTES_MAX: u64 = 8 << 20;

/// Most bytes that the second phase copies in one step.
const STEP_BYTES_MAX: u64 = 1 << 20;

type Handles = std::sync::Arc<OwnedFd>;

/// A file in its first phase.
#[derive(Debug)]
pub(super) struct Filling<'a> {
    pub(super) node: &'a Rc<Node>,
    pub(super) partial: &'a Rc<Partial>,
    file: &'a File,
    /// The end of the bytes that an earlier mount copied from the lower file. They are compared
    /// with it, because nothing else shows that the work file still has the written bytes.
    resumed: u64,
}

/// A stored run that the work file has.
#[derive(Debug)]
struct Held {
    range: Range<u64>,
    segment: SegmentId,
    position: u64,
}

/// A file that has gone through its first phase.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) whole: Whole,
    pub(super) wanted: Wanted,
    /// Its share of the files that may be open.
    pub(super) room: Permit,
    /// Bytes that were copied.
    pub(super) bytes: u64,
    held: Vec<Held>,
    /// The attribute's whole name.
    progress_name: Vec<u8>,
}

impl PartialFiles {
    /// Returns the first phase of one file.
    pub(super) async fn fill(
        self: &Rc<Self>,
        wanted: &Wanted,
        room: Permit,
    ) -> Result<Filled, Stop> {
        let (node, partial) = self.find_wanted(wanted).ok_or(Stop::Gone)?;
        let name = partial.store().fill_name(wanted.file).into_bytes();
        let lower = partial.lower_stat();
        let needed = lower.size.min(lower.blocks.saturating_mul(512));
        self.filler.check_room(&self.tree, needed)?;
        let upper = self.tree.upper()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let object = rustix::fs::openat(&upper.pending, &*name, flags, Mode::RUSR | Mode::WUSR)?;
        let file = object.try_clone().map_err(errno_of)?;
        let file = File::from_handle(Handle::from_fd(file));
        let progress_name = self.tree.layers().prefix.name(PROGRESS);
        let resumed = sys::xattr(object.as_fd(), &progress_name)?;
        let resumed = resumed.and_then(|text| String::from_utf8(text).ok()?.parse().ok());
        let filling =
            Filling { node: &node, partial: &partial, file: &file, resumed: resumed.unwrap_or(0) };
        match self.copy_pieces(&filling, object.as_fd(), &progress_name).await {
            Ok((held, bytes)) => {
                let whole = Whole { node, partial, file, object, name };
                let wanted = wanted.clone();
                Ok(Filled { whole, wanted, room, bytes, held, progress_name })
            }
            Err(stop) => {
                // The work file stays if the next mount can continue with it.
                if stop != Stop::Ending {
                    let _ = rustix::fs::unlinkat(&upper.pending, &*name, AtFlags::empty());
                }
                Err(stop)
            }
        }
    }

    /// Returns the node and file of a queued entry, if it is still partial.
    fn find_wanted(&self, wanted: &Wanted) -> Option<(Rc<Node>, Rc<Partial>)> {
        let (node, _) = self.tree.lookup(&wanted.parent, &wanted.name).ok().flatten()?;
        let partial = node.partial().filter(|partial| partial.file() == wanted.file)?;
        (!partial.is_completing()).then_some((node, partial))
    }

    /// Copies everything, in order. Returns which stored runs, and how many bytes.
    async fn copy_pieces(
        &self,
        filling: &Filling<'_>,
        object: std::os::fd::BorrowedFd<'_>,
        progress_name: &[u8],
    ) -> Result<(Vec<Held>, u64), Stop> {
        let PartialContent { size_bytes: size, pieces } = filling.partial.content()?;
        // The bytes behind it were copied by an earlier mount and are copied again, so that holes
        // stay holes.
        rustix::fs::ftruncate(object, filling.resumed.min(size))?;
        rustix::fs::ftruncate(object, size)?;
        let (mut held, mut bytes, mut dirty) = (Vec::new(), 0, 0);
        let mut since_checkpoint = 0;
        for piece in pieces {
            let Range { start, end } = piece.range;
            let mut at = match &piece.source {
                Source::Zero => continue,
                Source::Lower => start,
                Source::Damaged => return Err(Stop::Failed(Errno::IO)),
                Source::Stored { segment, position, .. } => {
                    held.push(Held { range: start..end, segment: *segment, position: *position });
                    start
                }
            };
            while at < end {
                let length = (end - at).min(self.filler.pace.step_bytes());
                if let Err(stop) = self.filler.turn(&self.tree, filling, length).await {
                    if stop == Stop::Ending && since_checkpoint >= DIRTY_BYTES_MAX {
                        self.checkpoint(filling.file, object, progress_name, at).await?;
                    }
                    return Err(stop);
                }
                let step = step(&self.tree, filling, &piece, at..at + length)?;
                let copied = self.worker.run(move || step.run()).await?;
                self.filler.pace.count(copied);
                (at, bytes, dirty) = (at + copied, bytes + copied, dirty + copied);
                since_checkpoint += copied;
                if dirty >= DIRTY_BYTES_MAX {
                    let file = filling.file.clone();
                    let write_back = move || file.write_back_blocking().map_err(errno_of);
                    self.worker.run(write_back).await?;
                    dirty = 0;
                }
                if since_checkpoint >= CHECKPOINT_BYTES {
                    self.checkpoint(filling.file, object, progress_name, at).await?;
                    since_checkpoint = 0;
                }
            }
        }
        Ok((held, bytes))
    }

    /// Makes the copied bytes durable, and then notes the progress.
    async fn checkpoint(
        &self,
        file: &File,
        object: std::os::fd::BorrowedFd<'_>,
        name: &[u8],
        at: u64,
    ) -> Result<(), Stop> {
        let handle = object.try_clone_to_owned().map_err(errno_of)?;
        let (file, name) = (file.clone(), name.to_vec());
        let note = move || {
            file.write_back_blocking().map_err(errno_of)?;
            rustix::fs::fdatasync(&handle)?;
            let at = at.to_string();
            sys::set_xattr(handle.as_fd(), &name, at.as_bytes(), XattrFlags::empty())
        };
        self.worker.run(note).await.map_err(Stop::from)
    }
}

/// Returns the copying of a part of a piece.
fn step(
    tree: &Tree,
    filling: &Filling<'_>,
    piece: &Piece<Handles>,
    part: Range<u64>,
) -> Result<Step, Errno> {
    let (at, length) = (part.start, part.end - part.start);
    let to = filling.file.clone();
    if let Source::Stored { handle, position, verifier, .. } = &piece.source {
        let (from, position) = (file_of(handle)?, position + (at - piece.range.start));
        let method = CopyMethod::Verified(verifier.clone());
        return Ok(Step { from, position, to, offset: at, length, method });
    }
    let (from, position) = (tree.lower_of(filling.node, filling.partial)?.file.clone(), at);
    let method = if at < filling.resumed { CopyMethod::Compared } else { CopyMethod::WithHoles };
    Ok(Step { from, position, to, offset: at, length, method })
}

impl Filled {
    /// Brings the work file up to date, while no request changes the file. It already has all bytes
    /// of the lower file, since these never increase.
    pub(super) async fn catch_up(&self, tree: &Tree, worker: &Worker) -> Result<(), Errno> {
        let Whole { node, partial, file, object, .. } = &self.whole;
        let PartialContent { size_bytes: size, pieces } = partial.content()?;
        rustix::fs::ftruncate(object, size)?;
        let filling = Filling { node, partial, file, resumed: 0 };
        for piece in &pieces {
            let Range { start, end } = piece.range;
            match piece.source {
                Source::Lower => {}
                Source::Damaged => return Err(Errno::IO),
                Source::Zero => make_zeros(object, start, end - start)?,
                Source::Stored { segment, position, .. } => {
                    if self.holds(&piece.range, segment, position) {
                        continue;
                    }
                    let mut at = start;
                    while at < end {
                        let length = (end - at).min(STEP_BYTES_MAX);
                        let step = step(tree, &filling, piece, at..at + length)?;
                        at += worker.run(move || step.run()).await?;
                    }
                }
            }
        }
        match sys::remove_xattr(object.as_fd(), &self.progress_name) {
            // Durable before the file is one of the upper directory: it comes before its sync.
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
        self.whole.check_source(tree)
    }

    fn holds(&self, range: &Range<u64>, segment: SegmentId, position: u64) -> bool {
        let next = self.held.partition_point(|held| held.range.start <= range.start);
        let Some(held) = next.checked_sub(1).map(|at| &self.held[at]) else { return false };
        held.range.end >= range.end
            && held.segment == segment
            && held.position + (range.start - held.range.start) == position
    }
}

/// Makes zeros, as a hole where there can be one.
fn make_zeros(file: &OwnedFd, start: u64, length: u64) -> Result<(), Errno> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, start, length) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        other => return other,
    }
    let mut at = start;
    while at < start + length {
        let step = ZEROS.len().min((start + length - at) as usize);
        at += rustix::io::pwrite(file, &ZEROS[..step], at)? as u64;
    }
    Ok(())
}
