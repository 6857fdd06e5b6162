//! Noting and returning how a file is used.

use crate::client::Client;
use crate::inode::Inode;
use crate::inode::habit::Habit;
use protocol::InodeId;

impl Client {
    /// Notes that a handle that may write has read or written a piece of the file.
    pub fn note_use(&self, id: InodeId, length: usize) {
        if let Some(inode) = self.known_inode(id) {
            inode.uses.note(length);
        }
    }

    /// Returns how a file was used lately.
    pub fn habit(&self, id: InodeId) -> Habit {
        self.known_inode(id).map_or(Habit::Unknown, |inode: std::rc::Rc<Inode>| inode.uses.habit())
    }
}
