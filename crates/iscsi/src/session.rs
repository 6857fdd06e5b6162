//! A session: a context of libiscsi, its socket in the ring, and the commands under way.
//!
//! A command owns its memory until the library calls back. The library does so for every command:
//! when it is answered, when the connection ends, at the latest when the context is destroyed.

use crate::library::{Capacity, Context, Library, Task};
use crate::{Address, Error};
use block::{DiscardEffect, Geometry};
use libc::{c_char, c_int, c_void};
use reactor::local::{Notify, OneshotReceiver, OneshotSender, oneshot};
use reactor::{Buffer, Chunk, Either, Either3, Handle, race, race3};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

/// Our name as initiator.
const INITIATOR: &CStr = c"iqn.2026-01.io.tsumugi:eval";
/// Timeout of connecting, of logging in and of logging out, in seconds.
const PATIENCE_SECONDS: c_int = 10;
/// `ISCSI_SESSION_NORMAL`.
const SESSION_NORMAL: c_int = 2;
/// `ISCSI_HEADER_DIGEST_NONE`.
const DIGEST_NONE: c_int = 0;
/// `SCSI_STATUS_GOOD`.
const GOOD: c_int = 0;

/// The memory of a command.
#[derive(Debug)]
pub(crate) enum Memory {
    /// A buffer to fill.
    In(Buffer),
    /// A chunk to send.
    Out(Chunk),
    /// None.
    None,
}

/// The result of a command.
pub(crate) type Answer = io::Result<Memory>;

/// A command under way; libiscsi has its address.
struct Request {
    memory: Memory,
    segment: libc::iovec,
    /// The library's function, to be called when the command has ended.
    free_task: unsafe extern "C" fn(*mut Task),
    error: unsafe extern "C" fn(*mut Context) -> *const c_char,
    sender: OneshotSender<Answer>,
}

/// A session with a target, for one thread.
#[derive(Debug)]
pub struct Session {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    library: Arc<Library>,
    /// Null once it is destroyed.
    context: Cell<*mut Context>,
    lun: c_int,
    /// A copy of the library's descriptor, because the library may close its own at any time.
    socket: Handle,
    geometry: Geometry,
    /// Notified when a command waits to be sent, or the session is over.
    queued: Notify,
    is_over: Cell<bool>,
    /// The reason why the session does not work any more.
    failure: RefCell<Option<String>>,
}

/// A context that is destroyed unless a session takes it.
struct Draft<'a> {
    library: &'a Library,
    context: *mut Context,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: the library made the context, and no other code has it.
            unsafe { (self.library.destroy_context)(self.context) };
        }
    }
}

/// Returns the text of the last error.
fn why(library: &Library, context: *mut Context) -> String {
    // SAFETY: the context is alive.
    unsafe { said(library.error, context) }
}

/// # Safety
/// `error` must be the library's function, and the context must be alive.
unsafe fn said(
    error: unsafe extern "C" fn(*mut Context) -> *const c_char,
    context: *mut Context,
) -> String {
    // SAFETY: the text, if there is one, belongs to the context and ends with a zero.
    let text = unsafe {
        let text = error(context);
        if text.is_null() { c"no reason given" } else { CStr::from_ptr(text) }
    };
    text.to_string_lossy().trim().to_string()
}

impl Session {
    /// Connects and logs in, which blocks the thread, and requests the unit's geometry. The thread
    /// needs a reactor.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn connect(library: &Arc<Library>, address: &Address) -> Result<Self, Error> {
        let failed = |action, why: String| Error::Session { action, address: address.clone(), why };
        let name =
            |text: &str| CString::new(text).map_err(|error| failed("name", error.to_string()));
        let (target, portal) = (name(&address.target)?, name(&address.portal)?);
        let lun = c_int::from(address.lun);
        // SAFETY: the name lives forever.
        let context = unsafe { (library.create_context)(INITIATOR.as_ptr()) };
        if context.is_null() {
            return Err(failed("make a context for", "no memory".into()));
        }
        let mut draft = Draft { library, context };
        // SAFETY: the context is alive, and the library copies the names.
        let is_connected = unsafe {
            (library.set_no_reconnect)(context, 1);
            (library.set_timeout)(context, PATIENCE_SECONDS) == 0
                && (library.set_target)(context, target.as_ptr()) == 0
                && (library.set_session_type)(context, SESSION_NORMAL) == 0
                && (library.set_header_digest)(context, DIGEST_NONE) == 0
                && (library.connect)(context, portal.as_ptr(), lun) == 0
        };
        if !is_connected {
            return Err(failed("connect to", why(library, context)));
        }
        let geometry = geometry(library, context, lun)
            .map_err(|error| failed("ask for the size of", error))?;
        let socket = socket(library, context)
            .map_err(|error| failed("watch the connection to", error.to_string()))?;
        // SAFETY: the context is alive. The library sets no timeouts; waiting callers have their
        // own.
        unsafe { (library.set_timeout)(context, 0) };
        draft.context = std::ptr::null_mut();
        let inner = Rc::new(Inner {
            library: Arc::clone(library),
            context: Cell::new(context),
            lun,
            socket,
            geometry,
            queued: Notify::new(),
            is_over: Cell::new(false),
            failure: RefCell::new(None),
        });
        drop(reactor::spawn(serve(Rc::clone(&inner))));
        Ok(Self { inner })
    }

    /// Returns the unit's geometry.
    pub fn geometry(&self) -> Geometry {
        self.inner.geometry
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.inner.is_over.set(true);
        self.inner.queued.notify();
    }
}

/// Returns the geometry of the unit.
fn geometry(library: &Library, context: *mut Context, lun: c_int) -> Result<Geometry, String> {
    // SAFETY: the context is alive.
    let task = unsafe { (library.read_capacity)(context, lun) };
    if task.is_null() {
        return Err(why(library, context));
    }
    // SAFETY: the task has ended; its answer belongs to it and is either null or that of READ
    // CAPACITY (16). The head of the answer is copied before the task is freed.
    let capacity = unsafe {
        let answer = (library.answer)(task).cast::<Capacity>();
        let capacity = if answer.is_null() { None } else { Some(*answer) };
        (library.free_task)(task);
        capacity
    };
    let capacity = capacity.ok_or_else(|| why(library, context))?;
    let block_size = capacity.block_size;
    let blocks = capacity.last_block.checked_add(1);
    let is_sound = |blocks: &u64| {
        let is_size = block_size.is_power_of_two() && block_size >= 512;
        is_size && blocks.checked_mul(u64::from(block_size)).is_some()
    };
    match blocks.filter(is_sound) {
        Some(blocks) => Ok(Geometry {
            block_size,
            blocks,
            discard: DiscardEffect::Ignored,
            has_volatile_cache: true,
        }),
        None => Err(format!("it has {blocks:?} blocks of {block_size} bytes")),
    }
}

/// Returns a descriptor of our own for the library's socket.
fn socket(library: &Library, context: *mut Context) -> io::Result<Handle> {
    // SAFETY: the context is alive.
    let fd = unsafe { (library.socket)(context) };
    if fd < 0 {
        return Err(io::ErrorKind::NotConnected.into());
    }
    // SAFETY: the library has the descriptor open, and is not called meanwhile.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(Handle::from_fd(fd.try_clone_to_owned()?))
}

/// Sends queued commands and receives answers until the session is over.
async fn serve(session: Rc<Inner>) {
    let socket = session.socket.clone();
    let mut readable = socket.poll_readable();
    while !session.is_over.get() {
        if session.wants(libc::POLLOUT) {
            session.turn(libc::POLLOUT);
        }
        let queued = session.queued.notified();
        let event = if session.wants(libc::POLLOUT) {
            // The library still wants to send: the socket is full.
            race3(&mut readable, queued, socket.poll_writable()).await
        } else {
            match race(&mut readable, queued).await {
                Either::First(event) => Either3::First(event),
                Either::Second(()) => Either3::Second(()),
            }
        };
        match event {
            Either3::First(Ok(_)) => {
                session.turn(libc::POLLIN);
                readable = socket.poll_readable();
            }
            Either3::Second(()) | Either3::Third(Ok(_)) => {}
            Either3::First(Err(error)) | Either3::Third(Err(error)) => {
                session.fail(&error.to_string());
            }
        }
    }
    // Commands under way get no answers any more, but must end.
    session.close();
}

impl Inner {
    /// Whether the library waits for this poll event.
    fn wants(&self, event: libc::c_short) -> bool {
        // SAFETY: the context is alive until the session is over, and this is not called after
        // that.
        unsafe { (self.library.wanted)(self.context.get()) & c_int::from(event) != 0 }
    }

    /// Lets the library send or receive. It may call back from there.
    fn turn(&self, event: libc::c_short) {
        // SAFETY: as above; callbacks touch only their own request and this session's cells.
        let done = unsafe { (self.library.serve)(self.context.get(), c_int::from(event)) };
        if done < 0 {
            self.fail(&why(&self.library, self.context.get()));
        }
    }

    fn fail(&self, why: &str) {
        self.failure.borrow_mut().get_or_insert_with(|| why.into());
        self.is_over.set(true);
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Queues a command at a byte offset; the next turn sends it.
    pub(crate) fn command(&self, offset: u64, memory: Memory) -> OneshotReceiver<Answer> {
        let (sender, receiver) = oneshot();
        if self.is_over.get() {
            let why = self.failure.borrow().clone().unwrap_or_else(|| "the session is over".into());
            // The caller may have been dropped.
            let _ = sender.send(Err(io::Error::other(why)));
            return receiver;
        }
        let segment = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (free_task, error) = (self.library.free_task, self.library.error);
        let request = Request { memory, segment, free_task, error, sender };
        let request = Box::into_raw(Box::new(request));
        // SAFETY: the request was just made, and belongs to the library if the library accepts the
        // command.
        let task = unsafe { self.queue(offset, request) };
        if task.is_null() {
            // SAFETY: the library did not accept it and will not call back.
            let request = unsafe { Box::from_raw(request) };
            let why = why(&self.library, self.context.get());
            let _ = request.sender.send(Err(io::Error::other(why)));
        } else {
            self.queued.notify();
        }
        receiver
    }

    /// Gives a request to the library.
    ///
    /// # Safety
    /// The request must come from [`Box::into_raw`]. The library owns it unless this returns null.
    unsafe fn queue(&self, offset: u64, request: *mut Request) -> *mut Task {
        let library = &self.library;
        let block_size = self.geometry.block_size as c_int;
        let block = offset / u64::from(self.geometry.block_size);
        let (context, lun, private) = (self.context.get(), self.lun, request.cast::<c_void>());
        // SAFETY: the caller gives a live request; its memory stays in place until the callback
        // frees it, because the buffer's and the chunk's bytes lie outside of the request.
        unsafe {
            match &mut (*request).memory {
                Memory::In(buffer) => {
                    let len = buffer.len();
                    (*request).segment =
                        libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len };
                    let task = (library.read)(
                        context, lun, block, len as u32, block_size, 0, 0, 0, 0, 0, ended, private,
                    );
                    if !task.is_null() {
                        (library.set_segments)(task, &raw mut (*request).segment, 1);
                    }
                    task
                }
                Memory::Out(chunk) => {
                    let (data, len) = (chunk.as_ptr().cast_mut(), chunk.len() as u32);
                    (library.write)(
                        context, lun, block, data, len, block_size, 0, 0, 0, 0, 0, ended, private,
                    )
                }
                Memory::None => (library.flush)(context, lun, 0, 0, 0, 0, ended, private),
            }
        }
    }
}

impl Inner {
    /// Logs out, if the connection is alive, and ends all commands.
    fn close(&self) {
        let context = self.context.replace(std::ptr::null_mut());
        if context.is_null() {
            return;
        }
        // SAFETY: no other code has the context. Destroying it ends all commands, each with a
        // callback.
        unsafe {
            if self.failure.borrow().is_none() {
                (self.library.set_timeout)(context, PATIENCE_SECONDS);
                (self.library.logout)(context);
            }
            (self.library.destroy_context)(context);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

/// Handles the end of a command. Nothing here panics, because C calls it.
///
/// # Safety
/// `private` must be a request that was given with the command, and must not be used again.
unsafe extern "C" fn ended(
    context: *mut Context,
    status: c_int,
    task: *mut c_void,
    private: *mut c_void,
) {
    // SAFETY: guaranteed by the caller.
    let request = unsafe { Box::from_raw(private.cast::<Request>()) };
    let Request { memory, free_task, error, sender, .. } = *request;
    let task = task.cast::<Task>();
    let mut residual_bytes = 0;
    if !task.is_null() {
        // SAFETY: the task has ended and no other code has it. Only its head is read.
        unsafe {
            if (*task).residual_status != 0 {
                residual_bytes = (*task).residual_bytes.max(1);
            }
            free_task(task);
        }
    }
    let has_moved_all = residual_bytes == 0 || matches!(memory, Memory::None);
    let answer = if status == GOOD && has_moved_all {
        Ok(memory)
    } else if status == GOOD {
        Err(io::Error::other(format!("good status, but {residual_bytes} bytes were not moved")))
    } else {
        // SAFETY: the library calls with a context that is alive.
        let why = unsafe { said(error, context) };
        Err(io::Error::other(format!("SCSI status {status:#x}: {why}")))
    };
    // The caller may have been dropped.
    let _ = sender.send(answer);
}
