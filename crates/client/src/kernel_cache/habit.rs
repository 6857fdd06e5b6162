//! Noting and returning how a file is used.

use crate::client::Client;
use crate::inode::Inode;
use crate::inode::habit::Habit;
use protocol::InodeId;

impl Client {
    /// Takes note that who may write a file has read or written a piece of it.
    pub fn note_use(&self, id: InodeId, length: usize) {
        if let Some(inode) = self.known_inode(id) {
            inode.uses.note(length);
        }
    }

    /// How a file was used lately.
    pub fn habit(&self, id: InodeId) -> Habit {
        self.known_inode(id).map_or(Habit::Unknown, |inode: std::rc::Rc<Inode>| inode.uses.habit())
    }
}
