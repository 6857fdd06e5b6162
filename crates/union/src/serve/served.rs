//! A union as the server serves it: the book records each answer before the kernel gets it, and a
//! request that an earlier server may have executed is not reported as an error.

use std::cell::RefCell;
use std::rc::Rc;

use fuse::{FileSystem, Negotiated, NodeId, Operation, Request, Response};
use reactor::mailbox::Sender;
use rustix::io::Errno;

use super::book::{Book, HandleKind};
use super::worker::Event;
use crate::ops::Union;
use crate::tree::{Node, Observer};

/// A union, its mount's number, and the receiver of the news that it is mounted.
#[derive(Debug)]
pub(super) struct Served {
    union: Rc<Union>,
    book: Rc<Book>,
    started: RefCell<Option<(u64, Sender<Event>)>>,
}

/// The part of a request that concerns the book.
#[derive(Debug)]
enum Subject {
    /// Names of these nodes are added or removed, as far as the nodes are known.
    Names([Option<Rc<Node>>; 2]),
    /// A handle of this node is opened.
    Opening { node: u64, for_writing: bool },
    /// A handle of a directory is opened.
    OpeningDirectory { node: u64 },
    /// A handle is closed.
    Closing(u64, HandleKind),
    /// Nothing.
    Other,
}

/// How to answer a request that may have been carried out before.
#[derive(Debug)]
enum Before {
    /// The name is gone: that was its purpose.
    Removed,
    /// The name is there: it was made.
    Made { parent: NodeId, name: Box<[u8]> },
    /// No such thing.
    Never,
}

impl Served {
    pub(super) fn new(union: Rc<Union>, book: Rc<Book>, id: u64, events: Sender<Event>) -> Self {
        Self { union, book, started: RefCell::new(Some((id, events))) }
    }

    /// Returns the subject of a request, and notes a name that is about to be added.
    fn subject(&self, request: &Request, book: &Book) -> Subject {
        let child = |parent: NodeId, name: &[u8]| {
            self.union.tree().node(parent).ok().and_then(|parent| parent.child(name))
        };
        match &request.operation {
            Operation::Unlink { name } | Operation::RemoveDirectory { name } => {
                Subject::Names([child(request.node, name.as_bytes()), None])
            }
            Operation::Rename { name, new_parent, new_name, .. } => {
                let moved = child(request.node, name.as_bytes());
                let other = child(*new_parent, new_name.as_bytes());
                if let Some(moved) = &moved {
                    book.add_name(moved, new_parent.0, new_name.as_bytes());
                }
                if let Some(other) = &other {
                    book.add_name(other, request.node.0, name.as_bytes());
                }
                Subject::Names([moved, other])
            }
            Operation::Link { inode, .. } => {
                Subject::Names([self.union.tree().node(*inode).ok(), None])
            }
            Operation::Open { flags, .. } => {
                Subject::Opening { node: request.node.0, for_writing: writes(*flags) }
            }
            Operation::Create { flags, .. } | Operation::TemporaryFile { flags, .. } => {
                Subject::Opening { node: 0, for_writing: writes(*flags) }
            }
            Operation::OpenDirectory { .. } => Subject::OpeningDirectory { node: request.node.0 },
            Operation::Release(release) => {
                // Both kinds of file have the same slot.
                Subject::Closing(
                    release.handle.0,
                    HandleKind::File { for_writing: false, is_passed: false },
                )
            }
            Operation::ReleaseDirectory(release) => {
                Subject::Closing(release.handle.0, HandleKind::Directory)
            }
            Operation::Lookup { .. }
            | Operation::GetAttributes { .. }
            | Operation::Statx(_)
            | Operation::SetAttributes(_)
            | Operation::ReadLink
            | Operation::Symlink { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeDirectory { .. }
            | Operation::Read(_)
            | Operation::Write(_)
            | Operation::Flush { .. }
            | Operation::Fsync { .. }
            | Operation::ReadDirectory(_)
            | Operation::ReadDirectoryPlus(_)
            | Operation::FsyncDirectory { .. }
            | Operation::StatFs
            | Operation::SetXattr { .. }
            | Operation::GetXattr { .. }
            | Operation::ListXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Access { .. }
            | Operation::GetLock(_)
            | Operation::SetLock { .. }
            | Operation::Fallocate { .. }
            | Operation::Lseek { .. }
            | Operation::CopyFileRange(_)
            | Operation::Ioctl(_)
            | Operation::Poll { .. }
            | Operation::SyncFs
            | Operation::BlockMap { .. } => Subject::Other,
        }
    }

    /// Notes the outcome of a request.
    fn note(&self, subject: Subject, response: &Response, book: &Book) {
        match (subject, response) {
            (Subject::Names(nodes), _) => {
                for node in nodes.into_iter().flatten() {
                    // A node without references was forgotten meanwhile.
                    if node.is_known() {
                        book.note_names(&node);
                        book.note_gone(&node);
                    }
                }
            }
            (Subject::Opening { node, for_writing }, Response::Opened(opened)) => {
                let is_passed = opened.backing.is_some();
                book.open(opened.handle.0, HandleKind::File { for_writing, is_passed }, node);
            }
            (Subject::Opening { for_writing, .. }, Response::Created(entry, opened)) => {
                let is_passed = opened.backing.is_some();
                let kind = HandleKind::File { for_writing, is_passed };
                book.open(opened.handle.0, kind, entry.node.0);
                if let Ok(node) = self.union.tree().node(entry.node) {
                    book.note_gone(&node);
                }
            }
            (Subject::OpeningDirectory { node }, Response::Opened(opened)) => {
                book.open(opened.handle.0, HandleKind::Directory, node);
            }
            (Subject::Closing(handle, kind), _) => book.close(handle, kind),
            _ => {}
        }
    }

    /// Returns the answer to a request that an earlier server may have executed. The kernel has
    /// held the directories' locks since then, so no other request has changed these names.
    fn answer_again(&self, before: Before, response: Response) -> Response {
        match (before, &response) {
            (Before::Removed, Response::Error(Errno::NOENT)) => Response::Done,
            (Before::Made { parent, name }, Response::Error(Errno::EXIST)) => {
                let found = self
                    .union
                    .tree()
                    .node(parent)
                    .and_then(|parent| self.union.tree().lookup(&parent, &name))
                    .ok()
                    .flatten();
                match found {
                    Some((node, stat)) => Response::Entry(self.union.entry(&node, &stat)),
                    None => response,
                }
            }
            _ => response,
        }
    }
}

impl FileSystem for Served {
    fn init(&self, negotiated: &Negotiated) {
        self.union.init(negotiated);
        if let Some((id, events)) = self.started.take() {
            let negotiated = negotiated.clone();
            drop(reactor::spawn(async move {
                // Fails only if the server is ending, which then knows.
                let _ = events.send(Event::Serving(id, negotiated)).await;
            }));
        }
    }

    async fn handle(self: Rc<Self>, mut request: Request) -> Response {
        let book = &*self.book;
        let subject = self.subject(&request, book);
        let before = if request.is_resent { before(&mut request) } else { Before::Never };
        let response = Rc::clone(&self.union).handle(request).await;
        let response = self.answer_again(before, response);
        self.note(subject, &response, book);
        response
    }

    fn forget(&self, forgets: &[(NodeId, u64)]) {
        FileSystem::forget(&*self.union, forgets);
    }

    fn destroy(&self) {
        self.union.destroy();
    }
}

/// Returns which errors of a request say that it was carried out before.
fn before(request: &mut Request) -> Before {
    let parent = request.node;
    match &mut request.operation {
        Operation::Unlink { .. } | Operation::RemoveDirectory { .. } | Operation::Rename { .. } => {
            Before::Removed
        }
        Operation::Symlink { name, .. }
        | Operation::MakeNode { name, .. }
        | Operation::MakeDirectory { name, .. } => {
            Before::Made { parent, name: name.as_bytes().into() }
        }
        Operation::Link { new_name, .. } => {
            Before::Made { parent, name: new_name.as_bytes().into() }
        }
        Operation::Create { flags, .. } => {
            // An existing file is the one that this request has made.
            *flags &= !(libc::O_EXCL as u32);
            Before::Never
        }
        // These give the same answer again, or made an object without a name.
        Operation::Lookup { .. }
        | Operation::GetAttributes { .. }
        | Operation::Statx(_)
        | Operation::SetAttributes(_)
        | Operation::ReadLink
        | Operation::Open { .. }
        | Operation::TemporaryFile { .. }
        | Operation::Read(_)
        | Operation::Write(_)
        | Operation::Flush { .. }
        | Operation::Release(_)
        | Operation::Fsync { .. }
        | Operation::OpenDirectory { .. }
        | Operation::ReadDirectory(_)
        | Operation::ReadDirectoryPlus(_)
        | Operation::ReleaseDirectory(_)
        | Operation::FsyncDirectory { .. }
        | Operation::StatFs
        | Operation::SetXattr { .. }
        | Operation::GetXattr { .. }
        | Operation::ListXattr { .. }
        | Operation::RemoveXattr { .. }
        | Operation::Access { .. }
        | Operation::GetLock(_)
        | Operation::SetLock { .. }
        | Operation::Fallocate { .. }
        | Operation::Lseek { .. }
        | Operation::CopyFileRange(_)
        | Operation::Ioctl(_)
        | Operation::Poll { .. }
        | Operation::SyncFs
        | Operation::BlockMap { .. } => Before::Never,
    }
}

fn writes(flags: u32) -> bool {
    flags as i32 & libc::O_ACCMODE != libc::O_RDONLY
}
