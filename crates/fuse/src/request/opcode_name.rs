//! The protocol's names of its operations.

use super::Operation;

impl Operation {
    /// Returns the operation's name in `enum fuse_opcode` of `<linux/fuse.h>`, without its prefix.
    pub fn opcode_name(&self) -> &'static str {
        match self {
            Self::Lookup { .. } => "LOOKUP",
            Self::GetAttributes { .. } => "GETATTR",
            Self::Statx(_) => "STATX",
            Self::SetAttributes(_) => "SETATTR",
            Self::ReadLink => "READLINK",
            Self::Symlink { .. } => "SYMLINK",
            Self::MakeNode { .. } => "MKNOD",
            Self::MakeDirectory { .. } => "MKDIR",
            Self::Unlink { .. } => "UNLINK",
            Self::RemoveDirectory { .. } => "RMDIR",
            Self::Rename { .. } => "RENAME",
            Self::Link { .. } => "LINK",
            Self::Open { .. } => "OPEN",
            Self::Create { .. } => "CREATE",
            Self::TemporaryFile { .. } => "TMPFILE",
            Self::Read(_) => "READ",
            Self::Write(_) => "WRITE",
            Self::Flush { .. } => "FLUSH",
            Self::Release(_) => "RELEASE",
            Self::Fsync { .. } => "FSYNC",
            Self::OpenDirectory { .. } => "OPENDIR",
            Self::ReadDirectory(_) => "READDIR",
            Self::ReadDirectoryPlus(_) => "READDIRPLUS",
            Self::ReleaseDirectory(_) => "RELEASEDIR",
            Self::FsyncDirectory { .. } => "FSYNCDIR",
            Self::StatFs => "STATFS",
            Self::SetXattr { .. } => "SETXATTR",
            Self::GetXattr { .. } => "GETXATTR",
            Self::ListXattr { .. } => "LISTXATTR",
            Self::RemoveXattr { .. } => "REMOVEXATTR",
            Self::Access { .. } => "ACCESS",
            Self::GetLock(_) => "GETLK",
            Self::SetLock { wait: false, .. } => "SETLK",
            Self::SetLock { wait: true, .. } => "SETLKW",
            Self::Fallocate { .. } => "FALLOCATE",
            Self::Lseek { .. } => "LSEEK",
            Self::CopyFileRange(_) => "COPY_FILE_RANGE",
            Self::Ioctl(_) => "IOCTL",
            Self::Poll { .. } => "POLL",
            Self::SyncFs => "SYNCFS",
            Self::BlockMap { .. } => "BMAP",
        }
    }
}
