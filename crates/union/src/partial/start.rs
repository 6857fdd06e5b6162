//! Making a partial copy instead of a whole one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::PartialFiles;
use crate::format::suffix;
use crate::journal::{Attributes, Creation, JournalError, Kind, LowerIdentity, Name, Xattr};
use crate::options::FillMode;
use crate::store::{Partial, failed, identity, key_of, now, time};
use crate::sys::{self, Stat};
use crate::tree::CAPABILITY;
use crate::tree::{Link, Node};

impl PartialFiles {
    /// Makes a node a partial file, if it is suitable. `false` leaves everything as it was.
    pub(crate) fn start_partial(
        self: &Rc<Self>,
        node: &Rc<Node>,
        link: &Link,
        lower: &OwnedFd,
        stat: &Stat,
        digest: Box<[u8]>,
    ) -> Result<bool, Errno> {
        let Some(store) = self.tree.store().filter(|_| self.is_partly_copied(stat)) else {
            return Ok(false);
        };
        if self.can_clone(lower.as_fd(), stat)? {
            return Ok(false);
        }
        let Ok(key) = key_of(self.tree.upper_part(&link.parent)?.as_fd()) else { return Ok(false) };
        let Some(xattrs) = self.xattrs_of_copy(node, lower.as_fd())? else { return Ok(false) };
        let named = Name::new(key, &link.name);
        let creation = Creation {
            lower: Some(LowerIdentity { digest, ..identity(lower.as_fd(), stat) }),
            kind: Kind::Partial,
            size_bytes: stat.size,
            attributes: Attributes {
                mode: stat.mode,
                uid: stat.uid,
                gid: stat.gid,
                atime: time(stat.atime),
                mtime: time(stat.mtime),
                ctime: now(),
            },
            xattrs,
            names: vec![named.map_err(|error| failed(&error))?],
        };
        let created = store.create(creation);
        let file = match created {
            Ok(file) => file,
            // What the journal cannot take is copied whole.
            Err(JournalError::TooLarge { .. } | JournalError::NameTaken(_)) => return Ok(false),
            // A segment takes more room than a small file does.
            Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::DQUOT) => {
                return Ok(false);
            }
            Err(error) => return Err(failed(&error)),
        };
        let lower = lower.try_clone().map_err(crate::sys::errno_of)?;
        self.tree.make_partial(node, Rc::new(Partial::new(store, file, lower, *stat)));
        self.durability.note_new_partial(&link.parent);
        self.filler.want(file, &link.parent, &link.name);
        Ok(true)
    }

    /// Returns whether a file with these attributes is copied in part, judging by them alone.
    pub(crate) fn is_partly_copied(&self, stat: &Stat) -> bool {
        let Some(store) = self.tree.store() else { return false };
        let is_cloned = self.clones.borrow().get(&stat.device) == Some(&true);
        let is_privileged = stat.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        let chunk_bytes = u64::from(self.tree.options().chunk_bytes);
        // Adding or removing a link changes the ctime by which the lower file is recognized; this
        // is likely for a file with several links.
        let is_linked = stat.nlink > 1;
        // A store that is never flushed has no mark that keeps the kernel's overlayfs away.
        let has_records = self.tree.layers().owners().is_some();
        let is_excluded = is_privileged || is_linked || store.is_volatile() || has_records;
        // A small file that is completed soon anyway costs less as one copy. A file that stays
        // partial costs one record, where a copy costs a new file with its own sync.
        let whole_max = match self.tree.options().fill {
            FillMode::Keep => 0,
            FillMode::Background | FillMode::Unmount => chunk_bytes,
        };
        chunk_bytes > 0 && stat.size > whole_max && !is_excluded && !is_cloned
    }

    /// Returns whether whole files can be cloned, which takes neither time nor space and so is
    /// better.
    fn can_clone(&self, lower: BorrowedFd<'_>, stat: &Stat) -> Result<bool, Errno> {
        if let Some(&known) = self.clones.borrow().get(&stat.device) {
            return Ok(known);
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let opened =
            rustix::fs::openat(&self.tree.upper()?.work, c".", flags, Mode::RUSR | Mode::WUSR);
        let can = match opened {
            Ok(file) => rustix::fs::ioctl_ficlone(&file, lower).is_ok(),
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(Errno::NOSPC),
            Err(_) => false,
        };
        self.clones.borrow_mut().insert(stat.device, can);
        Ok(can)
    }

    /// Returns the attributes that the copy will have; `None` if a write would have to change them.
    fn xattrs_of_copy(
        &self,
        node: &Node,
        lower: BorrowedFd<'_>,
    ) -> Result<Option<Vec<Xattr>>, Errno> {
        let mut xattrs = Vec::new();
        let (names, upper_names) = (self.tree.xattr_names_of(node), self.tree.upper_xattr_names());
        for name in sys::xattr_names(lower)? {
            // A write takes it away: such files are copied whole, as are those with suid.
            if name == CAPABILITY {
                return Ok(None);
            }
            let Some(stored) = names.carried(&upper_names, &name) else { continue };
            let Some(value) = sys::xattr(lower, &name)? else { continue };
            xattrs.push(Xattr { name: stored.into(), value: value.into() });
        }
        let name = self.tree.layers().prefix.name(suffix::ORIGIN).into();
        xattrs.push(Xattr { name, value: self.tree.origin_value(node, lower).into() });
        Ok(Some(xattrs))
    }
}
