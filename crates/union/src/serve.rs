//! One process for all mounts of a user, and another that outlives it.
//!
//! `tsumugi union` opens the layers, mounts, and passes both (open directories and the open device)
//! to the user's server, so that rights and mount namespace are the caller's. The server has one
//! thread a core; a union belongs to one of them for its life, so it needs no locks (see
//! `tree.rs`), and the unions of a thread share its committer. Long work (data of copies, flushes)
//! goes through the thread's reactor and blocks no other request.
//!
//! A keeper started the server. It holds what cannot be recreated: the devices, the layers, and a
//! book per mount with the kernel's knowledge (`book.rs`). When the server is killed, the kernel's
//! connections stay up, the keeper starts another server and gives it all of this, and the kernel
//! sends unanswered requests again.
//!
//! - [`hand_over`]: the caller's side (`client.rs`).
//! - [`run_server`]: the server (`server.rs`, `worker.rs`).
//! - [`run_keeper`]: the keeper (`keeper.rs`).

mod book;
mod client;
mod keeper;
mod rights;
mod served;
mod server;
mod wire;
mod worker;

pub use client::{HandOver, hand_over};
pub use keeper::run_keeper;
pub use server::{Command, Ending, run_server};

/// Raised with every change of the packets and of the book: servers serve callers of their own
/// version only, and take over from servers of their own version.
const PROTOCOL: u64 = 1;

/// Kinds of packets between caller and server.
mod kind {
    /// Caller: version, number of descriptors, options, mount point; with the first descriptors.
    pub(super) const MOUNT: u8 = b'M';
    /// Caller: further descriptors.
    pub(super) const MORE: u8 = b'F';
    /// Caller: connection number; with the device.
    pub(super) const DEVICE: u8 = b'D';
    /// Server: the layers are open and locked: mount now.
    pub(super) const READY: u8 = b'R';
    /// Server: it is served.
    pub(super) const SERVED: u8 = b'S';
    /// Server: it cannot be, and why.
    pub(super) const FAILED: u8 = b'E';
    /// Server: not by this server, and why.
    pub(super) const REFUSED: u8 = b'N';
    /// Server to keeper, and back to the next server: descriptors of a mount.
    pub(super) const KEEP: u8 = b'P';
    /// The same: the remaining details.
    pub(super) const KEPT: u8 = b'C';
    /// Server to keeper: a mount has ended.
    pub(super) const ENDED: u8 = b'X';
    /// Server to keeper, and back: the descriptor of an inode without a name.
    pub(super) const GONE: u8 = b'G';
    /// Server to keeper: no program has it open any more.
    pub(super) const FORGOTTEN: u8 = b'g';
    /// Keeper to server: that was all.
    pub(super) const ALL: u8 = b'.';
}
