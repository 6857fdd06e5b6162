//! Copying one file: data without its holes, attributes, verification, then the final name.

use super::{Options, Pair, Tally, task::Task, xattrs};
use crate::deploy::stop::{Stop, Stopped};
use anyhow::{Context, anyhow, bail};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per read and write.
const PIECE_BYTES: usize = 1 << 20;
/// Numbers that make temporary names unique.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// The buffer and settings of a worker.
#[derive(Debug)]
pub(crate) struct Copier {
    buffer: Vec<u8>,
    pub(super) checksum: bool,
    pub(super) xattrs: bool,
    stop: Stop,
}

/// A temporary name; if the file never gets its final name, the file is removed.
struct Unfinished(PathBuf);

impl Unfinished {
    fn beside(target: &Path) -> Unfinished {
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        // Not derived from the target's name, which may already have the maximum length.
        target.with_file_name(format!(".tsumugi-cp-{}-{count}", std::process::id())).into()
    }

    /// Gives the file its final name, and replaces an existing file.
    fn finish(mut self, target: &Path) -> anyhow::Result<()> {
        std::fs::rename(&self.0, target)
            .with_context(|| format!("cannot name it {}", target.display()))?;
        self.0 = PathBuf::new();
        Ok(())
    }
}

impl From<PathBuf> for Unfinished {
    fn from(path: PathBuf) -> Unfinished {
        Unfinished(path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Opens a regular file, and returns it with its attributes. Another program may have replaced it
/// since it was listed: this function neither follows a symbolic link nor waits for the writer of a
/// FIFO.
///
/// # Errors
/// If the file cannot be opened, or is no longer a regular file.
pub(crate) fn open_source(path: &Path) -> anyhow::Result<(File, Metadata)> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).context("cannot open it")?;
    let data = file.metadata().context("cannot read its attributes")?;
    if !data.is_file() {
        bail!("another program replaced it with something other than a regular file");
    }
    Ok((file, data))
}

impl Copier {
    /// Returns the tools of one worker.
    pub(crate) fn new(options: &Options, stop: Stop) -> Copier {
        let Options { checksum, xattrs, .. } = *options;
        Copier { buffer: vec![0; PIECE_BYTES], checksum, xattrs, stop }
    }

    /// Copies anything but a directory.
    pub(crate) fn copy(&mut self, task: &Task, tally: &Tally) -> anyhow::Result<()> {
        let kind = task.data.file_type();
        let unfinished = Unfinished::beside(&task.target);
        let pair = Pair { source: task.source.clone(), target: unfinished.0.clone() };
        if kind.is_file() {
            self.copy_data(task, &pair, tally)?;
            return unfinished.finish(&task.target);
        }
        if kind.is_symlink() {
            let text = std::fs::read_link(&task.source).context("cannot read the link")?;
            std::os::unix::fs::symlink(text, &unfinished.0).context("cannot make a link")?;
        } else if kind.is_fifo() {
            rustix::fs::mknodat(CWD, &unfinished.0, FileType::Fifo, Mode::RUSR, 0)
                .context("cannot make a fifo")?;
        } else {
            bail!("is a socket or device, which is not copied");
        }
        set_attributes(&pair, &task.data, self.xattrs)?;
        unfinished.finish(&task.target)
    }

    /// Copies data and attributes. Sets the attributes while the file is open: file systems that
    /// send changes to a server then send both together.
    fn copy_data(&mut self, task: &Task, pair: &Pair, tally: &Tally) -> anyhow::Result<()> {
        let path = &*pair.target;
        let (source, data) = open_source(&task.source)?;
        let mut options = OpenOptions::new();
        // Extended attributes are set through the path, and need a writable file.
        options.write(true).create_new(true).mode((data.mode() & 0o777) | 0o200);
        let target = options
            .open(path)
            .with_context(|| format!("cannot make a file in {}", parent(&task.target)))?;
        let digest = self.transfer(&source, Some(&target), Some(tally))?;
        set_attributes(pair, &data, self.xattrs)?;
        if !self.checksum {
            // Writes may fail late, at the latest at close, and the standard library drops its
            // result. Without reading back, only a sync shows the error.
            target
                .sync_data()
                .with_context(|| format!("cannot write {}", task.target.display()))?;
        }
        drop(target);
        if self.checksum {
            let copy = File::open(path).context("cannot read the copy back")?;
            if self.transfer(&copy, None, None)? != digest {
                bail!("{} differs from it after writing", task.target.display());
            }
            tally.file_verified();
        }
        Ok(())
    }

    /// Reads all of `source`, writes it to `target` if there is one, and returns the digest of the
    /// bytes (holes as zeros) if requested.
    fn transfer(
        &mut self,
        source: &File,
        target: Option<&File>,
        tally: Option<&Tally>,
    ) -> anyhow::Result<Option<blake3::Hash>> {
        let mut hasher = self.checksum.then(blake3::Hasher::new);
        let mut offset = 0;
        let mut written_end = 0;
        loop {
            let (start, end) = next_data(source, offset)?;
            hash_zeros(hasher.as_mut(), start - offset, &self.stop)?;
            add_bytes(tally, start - offset);
            offset = start;
            if start == end {
                break;
            }
            while offset < end {
                self.stop.check()?;
                let most = PIECE_BYTES.min((end - offset).try_into().unwrap_or(PIECE_BYTES));
                let count =
                    source.read_at(&mut self.buffer[..most], offset).context("cannot read it")?;
                if count == 0 {
                    break;
                }
                let piece = &self.buffer[..count];
                if let Some(hasher) = &mut hasher {
                    hasher.update(piece);
                }
                if let Some(target) = target {
                    target.write_all_at(piece, offset).context("cannot write the copy")?;
                }
                add_bytes(tally, count as u64);
                offset += count as u64;
                written_end = offset;
            }
            if offset < end && next_data(source, offset)?.0 >= end {
                bail!("became shorter while it was copied");
            }
        }
        if let Some(target) = target
            && written_end != offset
        {
            // A hole at the end has no bytes that would set the size.
            target.set_len(offset).context("cannot set the copy's size")?;
        }
        Ok(hasher.map(|hasher| hasher.finalize()))
    }
}

fn add_bytes(tally: Option<&Tally>, count: u64) {
    if let Some(tally) = tally {
        tally.add_bytes(count);
    }
}

/// Returns the next range with data; at the end of the file, an empty range there. If the file
/// system does not report holes, everything is data.
fn next_data(file: &File, offset: u64) -> anyhow::Result<(u64, u64)> {
    let size = file.metadata().context("cannot read its attributes")?.len();
    if offset >= size {
        return Ok((size.max(offset), size.max(offset)));
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        // No data from here on.
        Err(Errno::NXIO) => return Ok((size, size)),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok((offset, size)),
        Err(error) => return Err(anyhow!(error).context("cannot seek in it")),
    };
    let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => end,
        Err(Errno::NXIO) => return Ok((size, size)),
        Err(error) => return Err(anyhow!(error).context("cannot seek in it")),
    };
    Ok((start, end))
}

/// Adds the zeros of a hole to a digest. A hole may be larger than any disk, so a request to stop
/// ends this too.
fn hash_zeros(
    hasher: Option<&mut blake3::Hasher>,
    mut count: u64,
    stop: &Stop,
) -> Result<(), Stopped> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    let Some(hasher) = hasher else { return Ok(()) };
    while count > 0 {
        stop.check()?;
        let piece = count.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..piece as usize]);
        count -= piece;
    }
    Ok(())
}

/// Gives a copy the owner (as root), mode and times of `data`, and the extended attributes of its
/// source if requested. Symbolic links have no mode. Attributes that are right already are not set
/// again, because each change is a round trip on network file systems.
pub(crate) fn set_attributes(pair: &Pair, data: &Metadata, xattrs: bool) -> anyhow::Result<()> {
    let path = &*pair.target;
    let failed = |what: &str| format!("cannot set {what} of {}", path.display());
    let now = path.symlink_metadata().with_context(|| failed("attributes"))?;
    let mut mode = now.mode();
    let is_root = rustix::process::geteuid().is_root();
    if is_root && (now.uid(), now.gid()) != (data.uid(), data.gid()) {
        std::os::unix::fs::lchown(path, Some(data.uid()), Some(data.gid()))
            .with_context(|| failed("the owner"))?;
        // The change of owner may have cleared bits.
        mode = 0;
    }
    // After the owner, because that change removes a file's capabilities, and before the mode,
    // which may forbid it.
    if xattrs {
        xattrs::copy(&pair.source, path)?;
    }
    let wanted = mode_for_owner(data, (now.uid(), now.gid()), is_root);
    if !data.file_type().is_symlink() && mode & 0o7777 != wanted {
        std::fs::set_permissions(path, Permissions::from_mode(wanted))
            .with_context(|| failed("the mode"))?;
    }
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(data.atime(), data.atime_nsec()),
        last_modification: time(data.mtime(), data.mtime_nsec()),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .with_context(|| failed("the times"))
}

/// Returns the mode that a copy with this owner and group gets. The copy keeps set-user-ID and
/// set-group-ID only if it has the user or group of the source. Otherwise every user could run it
/// with the rights of the user that made the copy. Copies by root have the source's owner.
pub(crate) fn mode_for_owner(data: &Metadata, (uid, gid): (u32, u32), is_root: bool) -> u32 {
    const SUID: u32 = 0o4000;
    const SGID: u32 = 0o2000;
    let mode = data.mode() & 0o7777;
    if is_root || data.is_dir() {
        return mode;
    }
    let lost_uid = if uid == data.uid() { 0 } else { SUID };
    let lost_gid = if gid == data.gid() { 0 } else { SGID };
    mode & !(lost_uid | lost_gid)
}

/// Creates a further name, and replaces an existing file.
pub(crate) fn link(first: &Path, name: &Path) -> anyhow::Result<()> {
    let unfinished = Unfinished::beside(name);
    std::fs::hard_link(first, &unfinished.0)
        .with_context(|| format!("cannot link it to {}", first.display()))?;
    // rename(2) does nothing when both names belong to the same file; then the name exists already.
    std::fs::rename(&unfinished.0, name).with_context(|| format!("cannot name {}", name.display()))
}

fn parent(path: &Path) -> String {
    path.parent().unwrap_or(Path::new(".")).display().to_string()
}
