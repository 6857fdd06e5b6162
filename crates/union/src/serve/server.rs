//! The server's main thread: it accepts callers, and distributes mounts over the workers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use fuse::{Negotiated, Unmounter};
use reactor::Handle;
use reactor::local::{Notify, OneshotSender, Semaphore, oneshot};
use reactor::mailbox::Receiver;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::book::Pages;
use super::keeper::{Keeper, Kept, ToKeep};
use super::wire::{Channel, Packet, Reader, Writer};
use super::worker::{Event, Order, Worker, events};
use super::{PROTOCOL, kind, rights};
use crate::copier::{Copier, CopyThread};
use crate::layers::{Directories, Layers};
use crate::mount::{END_WAIT_MAX, Ready, in_background};
use crate::options::{LOWER_LAYERS_MAX, Options};

/// Callers that are served at a time; more wait.
const CALLERS_MAX: usize = 64;
/// Threads that open layers, at a time: they may wait for another process to release them, and for
/// a file system below that does not answer. Other mounts continue beside them.
const OPENING_MAX: usize = 16;
/// How long the first caller is waited for.
const FIRST_CALLER_TIME_MAX: Duration = Duration::from_secs(30);

/// Why a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its last mount is gone.
    Idle,
    /// On request: everything is unmounted.
    Told,
    /// For its successor: mounts stay, nothing is finished.
    Replaced,
}

/// An event from the server's surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Unmount everything, finish and end.
    End,
    /// End at once; the keeper starts a successor.
    Replace,
}

/// The main thread's state.
struct Server {
    workers: Vec<Worker>,
    keeper: Keeper,
    mounts: RefCell<HashMap<u64, Mounted>>,
    next: Cell<u64>,
    callers: Cell<usize>,
    opening: Semaphore,
    room: Semaphore,
    /// Something ended.
    changed: Notify,
}

/// A mount.
struct Mounted {
    worker: usize,
    unmounter: Unmounter,
    /// Shows whether the kernel has released the mount.
    device: OwnedFd,
    /// The caller that waits until it is served.
    waiting: Option<OneshotSender<Result<Negotiated, String>>>,
}

impl Mounted {
    /// Returns whether the mount still exists, under any name. If not, the number of its connection
    /// may belong to another mount.
    fn is_connected(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut device = [PollFd::new(&self.device, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut device, Some(&now)).is_ok() && !device[0].revents().contains(PollFlags::ERR)
    }
}

/// Serves until the last mount is gone. `listener` accepts callers, `keeper` is the socket of the
/// process that started this one, `signals` delivers its signals.
///
/// # Errors
/// If threads or sockets fail; errors of a single mount go to its caller.
pub async fn run_server(
    listener: OwnedFd,
    keeper: OwnedFd,
    mut commands: Receiver<Command>,
) -> io::Result<Ending> {
    let (sender, inbox) = events();
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    // With the threads that serve, this one among them: two a core.
    let copiers: Vec<_> = std::iter::repeat_with(CopyThread::default).take(count).collect();
    let workers: io::Result<Vec<_>> = (0..count)
        .map(|index| {
            let copier = Copier::new(&copiers[(index + 1) % count], &copiers[index]);
            let sender = sender.clone();
            match index {
                0 => Ok(Worker::start_here(copier, sender)),
                _ => Worker::start(index, copier, sender),
            }
        })
        .collect();
    drop(sender);
    let (keeper, kept) = Keeper::connect(keeper)?;
    let first = kept.iter().map(|kept| kept.id + 1).max().unwrap_or(1);
    let server = Rc::new(Server {
        workers: workers?,
        keeper,
        mounts: RefCell::default(),
        next: Cell::new(first),
        callers: Cell::new(0),
        opening: Semaphore::new(OPENING_MAX),
        room: Semaphore::new(CALLERS_MAX),
        changed: Notify::new(),
    });
    let has_kept = !kept.is_empty();
    drop(reactor::spawn(Rc::clone(&server).note(inbox)));
    for kept in kept {
        server.callers.set(server.callers.get() + 1);
        drop(reactor::spawn(Rc::clone(&server).restore(kept)));
    }
    drop(reactor::spawn(Rc::clone(&server).accept(listener)));
    let commanded = async {
        match commands.recv().await {
            Some(command) => command,
            None => std::future::pending().await,
        }
    };
    match reactor::race(std::pin::pin!(commanded), std::pin::pin!(server.idle(has_kept))).await {
        reactor::Either::First(Command::Replace) => Ok(Ending::Replaced),
        reactor::Either::First(Command::End) => {
            server.unmount_all();
            let waited = std::pin::pin!(reactor::time::sleep(END_WAIT_MAX));
            let emptied = std::pin::pin!(server.empty());
            if let reactor::Either::Second(()) = reactor::race(emptied, waited).await {
                server.cut_off_all();
                server.empty().await;
            }
            Ok(Ending::Told)
        }
        reactor::Either::Second(()) => Ok(Ending::Idle),
    }
}

impl Server {
    /// Completes when the last mount is gone and no caller asks for another. Before the first
    /// caller there is nothing to end.
    async fn idle(&self, has_kept: bool) {
        if !has_kept {
            let first = async {
                while self.callers.get() == 0 && self.mounts.borrow().is_empty() {
                    self.changed.notified().await;
                }
            };
            // The process that started this server may have died before it connected.
            let late = reactor::time::sleep(FIRST_CALLER_TIME_MAX);
            let _ = reactor::race(std::pin::pin!(first), std::pin::pin!(late)).await;
        }
        self.empty().await;
    }

    async fn empty(&self) {
        while self.callers.get() > 0 || !self.mounts.borrow().is_empty() {
            self.changed.notified().await;
        }
    }

    /// Unmounts everything, on a thread of its own: unmounting may wait for the workers.
    fn unmount_all(&self) {
        let mounts = self.mounts.borrow();
        let unmounters: Vec<_> = mounts.values().map(|mount| mount.unmounter.clone()).collect();
        in_background("unmount", move || {
            for unmounter in unmounters {
                if let Err(error) = unmounter.unmount() {
                    tracing::error!(%error, "left mounted");
                }
            }
            Ok(())
        });
    }

    /// Cuts off programs that still have files of a mount open.
    fn cut_off_all(&self) {
        for mount in self.mounts.borrow().values().filter(|mount| mount.is_connected()) {
            let mountpoint = mount.unmounter.mountpoint().display();
            tracing::warn!(%mountpoint, "files of this union are still open, and are cut off: \
                its server was told to end");
            let unmounter = mount.unmounter.clone();
            in_background("cut-off", move || unmounter.abort());
        }
    }

    /// Accepts callers.
    async fn accept(self: Rc<Self>, listener: OwnedFd) {
        let listener = Handle::from_fd(listener);
        loop {
            let permit = self.room.acquire(1).await;
            if let Err(error) = listener.poll_readable().await {
                tracing::error!(%error, "callers can come no more");
                return;
            }
            let Ok(fd) = listener.as_fd() else { return };
            match rustix::net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    self.callers.set(self.callers.get() + 1);
                    self.changed.notify();
                    let server = Rc::clone(&self);
                    drop(reactor::spawn(async move {
                        if let Err(error) = server.clone().attend(socket).await {
                            tracing::debug!(%error, "a caller went away");
                        }
                        server.callers.set(server.callers.get() - 1);
                        server.changed.notify();
                        drop(permit);
                    }));
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    tracing::error!(%errno, "a caller could not be let in");
                    reactor::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves one caller.
    async fn attend(self: Rc<Self>, socket: OwnedFd) -> io::Result<()> {
        let is_equal = rights::is_equal_peer(&socket);
        let caller = Caller::new(socket)?;
        if !matches!(is_equal, Ok(true)) {
            return caller.say(kind::REFUSED, "the server has other rights than the caller");
        }
        let asked = match caller.asked().await? {
            Ok(asked) => asked,
            Err(reason) => return caller.say(kind::REFUSED, &reason),
        };
        let Asked { text, mountpoint, options, directories } = asked;
        let directories = Rc::new(directories);
        let ready = match self.open(options, Rc::clone(&directories)).await {
            Ok(ready) => ready,
            Err(words) => return caller.say(kind::FAILED, &words),
        };
        caller.say(kind::READY, "")?;
        let Some((number, device)) = caller.device().await? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let unmounter = Unmounter::of(&mountpoint, number);
        let id = self.next.replace(self.next.get() + 1);
        let kept_device = device.try_clone()?;
        let pages = Pages::new()?;
        let order = Order {
            id,
            ready,
            device,
            unmounter,
            agreed: None,
            pages: pages.try_clone()?,
            keeper: self.keeper.clone(),
            gone: Vec::new(),
        };
        let agreed = match self.start(order).await {
            Ok(agreed) => agreed,
            Err(words) => return caller.say(kind::FAILED, &words),
        };
        self.keeper.keep(&ToKeep {
            id,
            text: &text,
            mountpoint: &mountpoint,
            number,
            agreed: &agreed,
            device: &kept_device,
            pages: &pages,
            directories: &directories,
        });
        caller.say(kind::SERVED, "")
    }

    /// Opens and locks layers, and finishes what an earlier process has left in them.
    async fn open(&self, options: Options, directories: Rc<Directories>) -> Result<Ready, String> {
        let _permit = self.opening.acquire(1).await;
        let directories = directories.try_clone().map_err(|error| error.to_string())?;
        let config = reactor::Config { entries: 8, ..reactor::Config::default() };
        let open = move || async move {
            let layers = Layers::assemble(&options, &directories);
            let ready = layers.and_then(|layers| Ready::of_mount(options, layers));
            ready.map_err(|error| error.to_string())
        };
        let thread = reactor::thread::spawn("union-open", &config, open)
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        thread.await.unwrap_or_else(|_| Err("opening the layers failed".into()))
    }

    /// Gives a mount to the worker with the fewest, and waits until it is served.
    async fn start(&self, order: Order) -> Result<Negotiated, String> {
        let mut counts = vec![0_usize; self.workers.len()];
        for mount in self.mounts.borrow().values() {
            counts[mount.worker] += 1;
        }
        let worker = (0..counts.len()).min_by_key(|&index| counts[index]).unwrap_or(0);
        let (sender, receiver) = oneshot();
        let unmounter = order.unmounter.clone();
        let device = order.device.try_clone().map_err(|error| error.to_string())?;
        let mounted = Mounted { worker, unmounter, device, waiting: Some(sender) };
        self.mounts.borrow_mut().insert(order.id, mounted);
        let id = order.id;
        if self.workers[worker].orders.send(order).await.is_err() {
            self.mounts.borrow_mut().remove(&id);
            return Err("a thread of the server has ended".into());
        }
        receiver.await.unwrap_or_else(|_| Err("the mount ended at once".into()))
    }

    /// Serves a mount of an earlier server again.
    async fn restore(self: Rc<Self>, kept: Kept) {
        let id = kept.id;
        let mountpoint = kept.mountpoint.clone();
        if let Err(words) = self.try_restore(kept).await {
            tracing::error!(mountpoint = %mountpoint.display(), %words, "a mount is lost");
            self.keeper.forget(id);
        }
        self.callers.set(self.callers.get() - 1);
        self.changed.notify();
    }

    async fn try_restore(&self, kept: Kept) -> Result<(), String> {
        let Kept { id, text, mountpoint, number, agreed, device, pages, directories, gone } = kept;
        let options = Options::parse(&text).map_err(|error| error.to_string())?;
        let directories = Directories::from_descriptors(&options, directories)
            .ok_or("the keeper has not kept all layers")?;
        let ready = self.open(options, Rc::new(directories)).await?;
        let unmounter = Unmounter::of(&mountpoint, number);
        let (agreed, keeper) = (Some(agreed), self.keeper.clone());
        let order = Order { id, ready, device, unmounter, agreed, pages, keeper, gone };
        self.start(order).await.map(drop)
    }

    /// Records the workers' reports.
    async fn note(self: Rc<Self>, mut inbox: Receiver<Event>) {
        while let Some(event) = inbox.recv().await {
            match event {
                Event::Serving(id, negotiated) => {
                    let mut mounts = self.mounts.borrow_mut();
                    let waiting = mounts.get_mut(&id).and_then(|mount| mount.waiting.take());
                    if let Some(waiting) = waiting {
                        let _ = waiting.send(Ok(negotiated));
                    }
                }
                Event::Ended(id, result) => {
                    let Some(mount) = self.mounts.borrow_mut().remove(&id) else { continue };
                    match (mount.waiting, result) {
                        (Some(waiting), result) => {
                            let words = result.err().unwrap_or("unmounted at once".into());
                            let _ = waiting.send(Err(words));
                        }
                        (None, Err(words)) => tracing::error!(
                            mountpoint = %mount.unmounter.mountpoint().display(),
                            %words,
                            "a union ended"
                        ),
                        (None, Ok(())) => {}
                    }
                    self.keeper.forget(id);
                    self.changed.notify();
                }
            }
        }
    }
}

/// A mount that a caller requests.
struct Asked {
    text: Vec<u8>,
    mountpoint: PathBuf,
    options: Options,
    directories: Directories,
}

/// The socket of a caller.
struct Caller {
    channel: Channel,
    ready: Handle,
}

impl Caller {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        let ready = Handle::from_fd(socket.try_clone()?);
        Ok(Self { channel: Channel::new(socket), ready })
    }

    fn say(&self, kind: u8, words: &str) -> io::Result<()> {
        self.channel.send(&Writer::new(kind).bytes(words.as_bytes()).done(), &[])
    }

    async fn packet(&self) -> io::Result<Packet> {
        loop {
            match self.channel.try_receive() {
                Ok(Some(packet)) => return Ok(packet),
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ready.poll_readable().await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives the requested mount; the inner error says why this server cannot serve it.
    async fn asked(&self) -> io::Result<Result<Asked, String>> {
        let mut packet = self.packet().await?;
        let Some((kind::MOUNT, mut reader)) = Reader::new(&packet.bytes) else {
            return Ok(Err("the caller speaks another version".into()));
        };
        if reader.number() != Some(PROTOCOL) {
            return Ok(Err("the server is of another version".into()));
        }
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let count = reader.number().and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|&count| count <= LOWER_LAYERS_MAX + 2).ok_or_else(invalid)?;
        let text = reader.bytes().ok_or_else(invalid)?.to_vec();
        let mountpoint = reader.bytes().ok_or_else(invalid)?.to_vec();
        let mountpoint = PathBuf::from(std::ffi::OsString::from_vec(mountpoint));
        if !reader.is_at_end() || !mountpoint.as_os_str().as_bytes().starts_with(b"/") {
            return Err(invalid());
        }
        let mut descriptors = std::mem::take(&mut packet.descriptors);
        while descriptors.len() < count {
            let mut more = self.packet().await?;
            if more.bytes != [kind::MORE] || more.descriptors.is_empty() {
                return Err(invalid());
            }
            descriptors.append(&mut more.descriptors);
        }
        let options = match Options::parse(&text) {
            Ok(options) => options,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let directories = Directories::from_descriptors(&options, descriptors);
        let directories = directories.ok_or_else(invalid)?;
        Ok(Ok(Asked { text, mountpoint, options, directories }))
    }

    /// Returns the device, once it is mounted, and its connection's number.
    async fn device(&self) -> io::Result<Option<(u32, OwnedFd)>> {
        let mut packet = self.packet().await?;
        let Some((kind::DEVICE, mut reader)) = Reader::new(&packet.bytes) else { return Ok(None) };
        let number = reader.number().and_then(|number| u32::try_from(number).ok());
        Ok(number.zip(packet.descriptors.pop()))
    }
}
