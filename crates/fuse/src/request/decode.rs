//! Decoding of bytes to [`Operation`].
//!
//! Input is the header and one contiguous slice with everything behind it. Only WRITE is split,
//! because its data stays where the transport received it. Decoding cannot panic: every length is
//! checked before use, and a mismatch is a [`DecodeError`] that names the argument. The kernel is
//! trusted not to be hostile, but a bug on either side must not take the mount down.

mod arguments;

use reactor::{Chunk, RegionSlice};

use self::arguments::Arguments;
use super::{
    CopyFileRange, Ioctl, LockKind, LockRequest, Operation, Read, ReadDirectory, Release,
    SetAttributes, SetTime, StatxRequest, Write,
};
use crate::abi::{self, InHeader, fattr, opcode};
use crate::error::DecodeError;
use crate::types::{FileHandle, LockOwner, NodeId, PollHandle, Time, Unique};

/// A message on a connection after INIT.
#[derive(Debug)]
pub(crate) enum Message {
    /// A request that the file system answers.
    Operation(Operation),
    /// Lookup counts to take back; no answer.
    Forget(Vec<(NodeId, u64)>),
    /// A request's caller was interrupted; no answer.
    Interrupt(Unique),
    /// The last message.
    Destroy,
}

/// A decoder for requests, with the choices agreed in INIT.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Decoder {
    /// `FUSE_SETXATTR_EXT` was agreed.
    pub(crate) has_setxattr_ext: bool,
}

/// Returns the length in bytes of the operation's first argument, which the `io_uring` transport
/// keeps apart from the rest; 0 for operations without one.
pub(crate) fn first_argument_len(code: u32, decoder: Decoder) -> usize {
    use size_of as of;
    match code {
        opcode::GETATTR => of::<abi::GetattrIn>(),
        opcode::SETATTR => of::<abi::SetattrIn>(),
        opcode::MKNOD => of::<abi::MknodIn>(),
        opcode::MKDIR => of::<abi::MkdirIn>(),
        opcode::RENAME => of::<abi::RenameIn>(),
        opcode::RENAME2 => of::<abi::Rename2In>(),
        opcode::LINK => of::<abi::LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => of::<abi::OpenIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => of::<abi::ReadIn>(),
        opcode::WRITE => of::<abi::WriteIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => of::<abi::ReleaseIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => of::<abi::FsyncIn>(),
        opcode::SETXATTR if decoder.has_setxattr_ext => of::<abi::SetxattrIn>(),
        opcode::SETXATTR => of::<abi::SetxattrInCompat>(),
        opcode::GETXATTR | opcode::LISTXATTR => of::<abi::GetxattrIn>(),
        opcode::FLUSH => of::<abi::FlushIn>(),
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => of::<abi::LkIn>(),
        opcode::ACCESS => of::<abi::AccessIn>(),
        opcode::CREATE | opcode::TMPFILE => of::<abi::CreateIn>(),
        opcode::INTERRUPT => of::<abi::InterruptIn>(),
        opcode::BMAP => of::<abi::BmapIn>(),
        opcode::IOCTL => of::<abi::IoctlIn>(),
        opcode::POLL => of::<abi::PollIn>(),
        opcode::FALLOCATE => of::<abi::FallocateIn>(),
        opcode::LSEEK => of::<abi::LseekIn>(),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => of::<abi::CopyFileRangeIn>(),
        opcode::SYNCFS => of::<abi::SyncfsIn>(),
        opcode::STATX => of::<abi::StatxIn>(),
        _ => 0,
    }
}

impl Decoder {
    /// Decodes any message except WRITE; `body` is everything behind the header, contiguous.
    pub(crate) fn decode(
        self,
        header: &InHeader,
        body: &[u8],
        destination: Option<RegionSlice>,
    ) -> Result<Message, DecodeError> {
        let extensions_len = header.total_extlen as usize * 8;
        let split = body.len().checked_sub(extensions_len).ok_or(DecodeError::Truncated {
            opcode: header.opcode,
            argument: "extensions",
            needed_bytes: extensions_len,
            available_bytes: body.len(),
        })?;
        let (rest, extensions) = body.split_at(split);
        let mut arguments = Arguments { opcode: header.opcode, rest, extensions };
        match header.opcode {
            opcode::FORGET => {
                let forget: abi::ForgetIn = arguments.take()?;
                Ok(Message::Forget(vec![(NodeId(header.nodeid), forget.nlookup)]))
            }
            opcode::BATCH_FORGET => batch_forget(&mut arguments),
            opcode::INTERRUPT => {
                let interrupt: abi::InterruptIn = arguments.take()?;
                Ok(Message::Interrupt(Unique(interrupt.unique)))
            }
            opcode::DESTROY => Ok(Message::Destroy),
            opcode::READ => read(&mut arguments, destination).map(Message::Operation),
            _ => self.operation(&mut arguments).map(Message::Operation),
        }
    }

    fn operation(self, arguments: &mut Arguments<'_>) -> Result<Operation, DecodeError> {
        match arguments.opcode {
            opcode::LOOKUP
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE => name_operation(arguments),
            opcode::GETATTR
            | opcode::STATX
            | opcode::SETATTR
            | opcode::ACCESS
            | opcode::STATFS
            | opcode::READLINK
            | opcode::BMAP
            | opcode::SYNCFS => inode_operation(arguments),
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                self.xattr_operation(arguments)
            }
            opcode::OPEN
            | opcode::OPENDIR
            | opcode::RELEASE
            | opcode::RELEASEDIR
            | opcode::FLUSH
            | opcode::FSYNC
            | opcode::FSYNCDIR
            | opcode::READDIR
            | opcode::READDIRPLUS => open_file_operation(arguments),
            opcode => file_operation(arguments, opcode),
        }
    }

    fn xattr_operation(self, arguments: &mut Arguments<'_>) -> Result<Operation, DecodeError> {
        Ok(match arguments.opcode {
            opcode::SETXATTR => {
                let input = if self.has_setxattr_ext {
                    arguments.take::<abi::SetxattrIn>()?
                } else {
                    let abi::SetxattrInCompat { size, flags } = arguments.take()?;
                    abi::SetxattrIn { size, flags, ..Default::default() }
                };
                let name = arguments.string("attribute name")?.into();
                let value = arguments.bytes("attribute value", input.size as usize)?.into();
                let acl_kill_sgid = input.setxattr_flags & 1 != 0;
                Operation::SetXattr { name, value, flags: input.flags, acl_kill_sgid }
            }
            opcode::GETXATTR => {
                let input: abi::GetxattrIn = arguments.take()?;
                let name = arguments.string("attribute name")?.into();
                Operation::GetXattr { name, size: input.size }
            }
            opcode::LISTXATTR => {
                let input: abi::GetxattrIn = arguments.take()?;
                Operation::ListXattr { size: input.size }
            }
            _ => Operation::RemoveXattr { name: arguments.string("attribute name")?.into() },
        })
    }
}

/// Decodes a WRITE whose data lies apart, cut to the received length.
pub(crate) fn decode_write(input: &abi::WriteIn, data: Chunk) -> Result<Operation, DecodeError> {
    if data.len() != input.size as usize {
        return Err(DecodeError::Truncated {
            opcode: opcode::WRITE,
            argument: "data",
            needed_bytes: input.size as usize,
            available_bytes: data.len(),
        });
    }
    let has_owner = input.write_flags & abi::WRITE_LOCKOWNER != 0;
    Ok(Operation::Write(Write {
        handle: FileHandle(input.fh),
        offset: input.offset,
        data,
        lock_owner: has_owner.then_some(LockOwner(input.lock_owner)),
        flags: input.flags,
        is_from_cache: input.write_flags & abi::WRITE_CACHE != 0,
        kill_suid_sgid: input.write_flags & abi::WRITE_KILL_SUIDGID != 0,
    }))
}

fn batch_forget(arguments: &mut Arguments<'_>) -> Result<Message, DecodeError> {
    let header: abi::BatchForgetIn = arguments.take()?;
    let needed = (header.count as usize).saturating_mul(size_of::<abi::ForgetOne>());
    if arguments.rest.len() < needed {
        return Err(arguments.truncated("forgets", needed));
    }
    let mut forgets = Vec::with_capacity(header.count as usize);
    for _ in 0..header.count {
        let one: abi::ForgetOne = arguments.take()?;
        forgets.push((NodeId(one.nodeid), one.nlookup));
    }
    Ok(Message::Forget(forgets))
}

fn read(
    arguments: &mut Arguments<'_>,
    destination: Option<RegionSlice>,
) -> Result<Operation, DecodeError> {
    let input: abi::ReadIn = arguments.take()?;
    let has_owner = input.read_flags & abi::READ_LOCKOWNER != 0;
    let destination = match destination {
        Some(slice) if slice.len() < input.size as usize => {
            return Err(DecodeError::Value {
                opcode: opcode::READ,
                argument: "size",
                value: input.size.into(),
            });
        }
        Some(slice) => Some(slice.range(0, input.size as usize)),
        None => None,
    };
    Ok(Operation::Read(Read {
        handle: FileHandle(input.fh),
        offset: input.offset,
        size: input.size,
        lock_owner: has_owner.then_some(LockOwner(input.lock_owner)),
        flags: input.flags,
        destination,
    }))
}

fn name_operation(arguments: &mut Arguments<'_>) -> Result<Operation, DecodeError> {
    Ok(match arguments.opcode {
        opcode::LOOKUP => Operation::Lookup { name: arguments.name("name")? },
        opcode::UNLINK => Operation::Unlink { name: arguments.name("name")? },
        opcode::RMDIR => Operation::RemoveDirectory { name: arguments.name("name")? },
        opcode::SYMLINK => Operation::Symlink {
            name: arguments.name("name")?,
            target: arguments.string("target")?.into(),
            extensions: arguments.extensions()?,
        },
        opcode::MKNOD => {
            let input: abi::MknodIn = arguments.take()?;
            let name = arguments.name("name")?;
            let creation = arguments.creation(input.mode, input.umask)?;
            Operation::MakeNode { name, creation, rdev: input.rdev }
        }
        opcode::MKDIR => {
            let input: abi::MkdirIn = arguments.take()?;
            let name = arguments.name("name")?;
            Operation::MakeDirectory {
                name,
                creation: arguments.creation(input.mode, input.umask)?,
            }
        }
        opcode::RENAME => {
            let input: abi::RenameIn = arguments.take()?;
            rename(arguments, input.newdir, 0)?
        }
        opcode::RENAME2 => {
            let input: abi::Rename2In = arguments.take()?;
            rename(arguments, input.newdir, input.flags)?
        }
        opcode::LINK => {
            let input: abi::LinkIn = arguments.take()?;
            Operation::Link { inode: NodeId(input.oldnodeid), new_name: arguments.name("name")? }
        }
        opcode::CREATE => {
            let input: abi::CreateIn = arguments.take()?;
            let name = arguments.name("name")?;
            let creation = arguments.creation(input.mode, input.umask)?;
            let kill_suid_sgid = input.open_flags & abi::OPEN_KILL_SUIDGID != 0;
            Operation::Create { name, creation, flags: input.flags, kill_suid_sgid }
        }
        _ => {
            // TMPFILE: a placeholder name without meaning follows.
            let input: abi::CreateIn = arguments.take()?;
            let creation = arguments.creation(input.mode, input.umask)?;
            Operation::TemporaryFile { creation, flags: input.flags }
        }
    })
}

fn rename(
    arguments: &mut Arguments<'_>,
    new_parent: u64,
    flags: u32,
) -> Result<Operation, DecodeError> {
    let name = arguments.name("old name")?;
    let new_name = arguments.name("new name")?;
    Ok(Operation::Rename { name, new_parent: NodeId(new_parent), new_name, flags })
}

fn inode_operation(arguments: &mut Arguments<'_>) -> Result<Operation, DecodeError> {
    Ok(match arguments.opcode {
        opcode::GETATTR => {
            let input: abi::GetattrIn = arguments.take()?;
            let has_handle = input.getattr_flags & abi::GETATTR_FH != 0;
            Operation::GetAttributes { handle: has_handle.then_some(FileHandle(input.fh)) }
        }
        opcode::STATX => {
            let input: abi::StatxIn = arguments.take()?;
            let has_handle = input.getattr_flags & abi::GETATTR_FH != 0;
            Operation::Statx(StatxRequest {
                handle: has_handle.then_some(FileHandle(input.fh)),
                flags: input.sx_flags,
                mask: input.sx_mask,
            })
        }
        opcode::SETATTR => Operation::SetAttributes(set_attributes(&arguments.take()?)),
        opcode::ACCESS => {
            let input: abi::AccessIn = arguments.take()?;
            Operation::Access { mask: input.mask }
        }
        opcode::STATFS => Operation::StatFs,
        opcode::READLINK => Operation::ReadLink,
        opcode::BMAP => {
            let input: abi::BmapIn = arguments.take()?;
            Operation::BlockMap { block: input.block, block_size: input.blocksize }
        }
        _ => Operation::SyncFs,
    })
}

fn set_attributes(input: &abi::SetattrIn) -> SetAttributes {
    let has = |bit: u32| input.valid & bit != 0;
    let time = |now: bool, seconds: u64, nanoseconds: u32| {
        if now { SetTime::Now } else { SetTime::At(Time { seconds: seconds as i64, nanoseconds }) }
    };
    SetAttributes {
        handle: has(fattr::FH).then_some(FileHandle(input.fh)),
        mode: has(fattr::MODE).then_some(input.mode),
        uid: has(fattr::UID).then_some(input.uid),
        gid: has(fattr::GID).then_some(input.gid),
        size: has(fattr::SIZE).then_some(input.size),
        atime: has(fattr::ATIME).then(|| time(has(fattr::ATIME_NOW), input.atime, input.atimensec)),
        mtime: has(fattr::MTIME).then(|| time(has(fattr::MTIME_NOW), input.mtime, input.mtimensec)),
        ctime: has(fattr::CTIME)
            .then_some(Time { seconds: input.ctime as i64, nanoseconds: input.ctimensec }),
        lock_owner: has(fattr::LOCKOWNER).then_some(LockOwner(input.lock_owner)),
        kill_suid_sgid: has(fattr::KILL_SUIDGID),
    }
}

fn open_file_operation(arguments: &mut Arguments<'_>) -> Result<Operation, DecodeError> {
    Ok(match arguments.opcode {
        opcode::OPEN => {
            let input: abi::OpenIn = arguments.take()?;
            let kill_suid_sgid = input.open_flags & abi::OPEN_KILL_SUIDGID != 0;
            Operation::Open { flags: input.flags, kill_suid_sgid }
        }
        opcode::OPENDIR => {
            let input: abi::OpenIn = arguments.take()?;
            Operation::OpenDirectory { flags: input.flags }
        }
        opcode::RELEASE => Operation::Release(release(&arguments.take()?)),
        opcode::RELEASEDIR => Operation::ReleaseDirectory(release(&arguments.take()?)),
        opcode::FLUSH => {
            let input: abi::FlushIn = arguments.take()?;
            let lock_owner = LockOwner(input.lock_owner);
            Operation::Flush { handle: FileHandle(input.fh), lock_owner }
        }
        opcode::READDIR => Operation::ReadDirectory(read_directory(&arguments.take()?)),
        opcode::READDIRPLUS => Operation::ReadDirectoryPlus(read_directory(&arguments.take()?)),
        opcode => {
            let input: abi::FsyncIn = arguments.take()?;
            let handle = FileHandle(input.fh);
            let data_only = input.fsync_flags & abi::FSYNC_FDATASYNC != 0;
            if opcode == opcode::FSYNC {
                Operation::Fsync { handle, data_only }
            } else {
                Operation::FsyncDirectory { handle, data_only }
            }
        }
    })
}

fn release(input: &abi::ReleaseIn) -> Release {
    let unlocks = input.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
    Release {
        handle: FileHandle(input.fh),
        flags: input.flags,
        flush: input.release_flags & abi::RELEASE_FLUSH != 0,
        flock_unlock: unlocks.then_some(LockOwner(input.lock_owner)),
    }
}

fn read_directory(input: &abi::ReadIn) -> ReadDirectory {
    ReadDirectory { handle: FileHandle(input.fh), offset: input.offset, size: input.size }
}

fn file_operation(arguments: &mut Arguments<'_>, opcode: u32) -> Result<Operation, DecodeError> {
    Ok(match opcode {
        opcode::GETLK => Operation::GetLock(lock(arguments)?),
        opcode::SETLK => Operation::SetLock { lock: lock(arguments)?, wait: false },
        opcode::SETLKW => Operation::SetLock { lock: lock(arguments)?, wait: true },
        opcode::FALLOCATE => {
            let input: abi::FallocateIn = arguments.take()?;
            let abi::FallocateIn { fh, offset, length, mode, .. } = input;
            Operation::Fallocate { handle: FileHandle(fh), offset, length, mode }
        }
        opcode::LSEEK => {
            let input: abi::LseekIn = arguments.take()?;
            let handle = FileHandle(input.fh);
            Operation::Lseek { handle, offset: input.offset, whence: input.whence }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let input: abi::CopyFileRangeIn = arguments.take()?;
            Operation::CopyFileRange(CopyFileRange {
                handle_in: FileHandle(input.fh_in),
                offset_in: input.off_in,
                node_out: NodeId(input.nodeid_out),
                handle_out: FileHandle(input.fh_out),
                offset_out: input.off_out,
                length: input.len,
                flags: input.flags,
            })
        }
        opcode::IOCTL => Operation::Ioctl(ioctl(arguments)?),
        opcode::POLL => {
            let input: abi::PollIn = arguments.take()?;
            let wants_notify = input.flags & abi::POLL_SCHEDULE_NOTIFY != 0;
            let notify = wants_notify.then_some(PollHandle(input.kh));
            Operation::Poll { handle: FileHandle(input.fh), notify, events: input.events }
        }
        opcode => return Err(DecodeError::Unknown { opcode }),
    })
}

fn lock(arguments: &mut Arguments<'_>) -> Result<LockRequest, DecodeError> {
    let input: abi::LkIn = arguments.take()?;
    let kind = LockKind::from_raw(input.lk.kind).ok_or(DecodeError::Value {
        opcode: arguments.opcode,
        argument: "lock type",
        value: input.lk.kind.into(),
    })?;
    Ok(LockRequest {
        handle: FileHandle(input.fh),
        owner: LockOwner(input.owner),
        start: input.lk.start,
        end: input.lk.end,
        kind,
        pid: input.lk.pid,
        is_flock: input.lk_flags & abi::LK_FLOCK != 0,
    })
}

impl LockKind {
    fn from_raw(raw: u32) -> Option<Self> {
        match i32::try_from(raw).ok()? {
            libc::F_RDLCK => Some(Self::Read),
            libc::F_WRLCK => Some(Self::Write),
            libc::F_UNLCK => Some(Self::Unlock),
            _ => None,
        }
    }

    pub(crate) fn to_raw(self) -> u32 {
        match self {
            Self::Read => libc::F_RDLCK as u32,
            Self::Write => libc::F_WRLCK as u32,
            Self::Unlock => libc::F_UNLCK as u32,
        }
    }
}

fn ioctl(arguments: &mut Arguments<'_>) -> Result<Ioctl, DecodeError> {
    let input: abi::IoctlIn = arguments.take()?;
    let data = arguments.bytes("ioctl data", input.in_size as usize)?;
    Ok(Ioctl {
        handle: FileHandle(input.fh),
        is_directory: input.flags & abi::IOCTL_DIR != 0,
        is_compat: input.flags & abi::IOCTL_COMPAT_ANY != 0,
        command: input.cmd,
        argument: input.arg,
        input: data.into(),
        output_size: input.out_size,
    })
}

#[cfg(test)]
mod tests;
