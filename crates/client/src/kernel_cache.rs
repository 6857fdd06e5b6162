//! The caches of the kernel: names and attributes that it borrows, and its pages.
//!
//! Names and attributes are *lent*: for a short time
//! ([`Times::lent`](protocol::times::Times::lent)), never longer than this client may trust its
//! session, and only those that it caches itself under READ. If this process is frozen or killed,
//! the kernel goes on using what it was lent until that expires.
//!
//! Before the service gets the answer that something cached has been dropped, this client takes
//! back what was lent of it: it sends the kernel's front end a [`Change`](crate::Change) with a way
//! to answer, and waits for the answer. Two things stand in the way there (fs/fuse of Linux):
//!
//! - The kernel may not know an inode *yet*, as the answer that names it is on its way. Then the
//!   client sends the change again, until the kernel knows the inode, has forgotten it, or what was
//!   lent has expired.
//! - To drop a name the kernel takes its directory's lock. A create, removal or rename of this
//!   mount holds that lock while it waits for the service, and so perhaps for another mount that
//!   waits in the same way. After a few milliseconds all names of the mount are dropped at once
//!   instead, which takes no lock; where that is not possible, they expire.
//!
//! A directory in which others change names lends none for some seconds, so that the second case is
//! rare.

mod habit;
mod lend;
mod pages;
mod take_back;
