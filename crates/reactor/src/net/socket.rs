//! Makes and configures kernel sockets, optionally in a network namespace.

use super::{BACKLOG, SocketOptions};
use crate::handle::Handle;
use crate::sim::{SimHandle, World, simulated};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Returns a socket that listens at `address`, and its actual address.
pub(super) fn listen(
    address: SocketAddr,
    options: &SocketOptions,
) -> io::Result<(Handle, SocketAddr)> {
    if let Some(made) = simulated(|world, node| world.listen(node, address)) {
        return made.map(|(object, address)| (SimHandle::into_handle(object), address));
    }
    let fd = make(address, options)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, &address)?;
    rustix::net::listen(&fd, BACKLOG)?;
    let local_addr = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
    Ok((Handle::from_fd(fd), local_addr))
}

/// Returns a socket for a connection to `address`.
pub(super) fn open(address: SocketAddr, options: &SocketOptions) -> io::Result<Handle> {
    if let Some(object) = simulated(World::socket) {
        return Ok(SimHandle::into_handle(object));
    }
    make(address, options).map(Handle::from_fd)
}

/// Applies per-connection options and returns the local address.
pub(super) fn set_up(handle: &Handle, options: &SocketOptions) -> io::Result<SocketAddr> {
    if let Some(address) = simulated(|world, _| world.local_addr(handle.simulated())) {
        return address;
    }
    let fd = handle.as_fd()?;
    if options.nodelay {
        sockopt::set_tcp_nodelay(fd, true)?;
    }
    Ok(SocketAddr::try_from(rustix::net::getsockname(fd)?)?)
}

/// Sets `SO_LINGER` to zero seconds.
pub(super) fn discard_unsent_on_close(handle: &Handle) {
    if simulated(|_, _| ()).is_some() {
        return;
    }
    // Fails for a connection that has ended already: it sends nothing either.
    if let Ok(fd) = handle.as_fd() {
        let _ = sockopt::set_socket_linger(fd, Some(std::time::Duration::ZERO));
    }
}

fn make(address: SocketAddr, options: &SocketOptions) -> io::Result<OwnedFd> {
    let fd = match &options.network_namespace {
        None => socket(address)?,
        Some(path) => within(path, || socket(address))?,
    };
    // Set before connect or listen, so that the window scale is chosen for them; accepted sockets
    // inherit them.
    if let Some(bytes) = options.send_buffer_bytes {
        sockopt::set_socket_send_buffer_size(&fd, bytes)?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        sockopt::set_socket_recv_buffer_size(&fd, bytes)?;
    }
    Ok(fd)
}

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(ipproto::TCP);
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, protocol)?)
}

/// Runs `f` in another network namespace, on a thread that lives only for that. So there is no way
/// back that could fail and leave this thread's later sockets in a foreign namespace.
fn within<T: Send>(path: &Path, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let context = |what: &str, error: io::Error| {
        let message = format!("cannot {what} network namespace {}: {error}", path.display());
        io::Error::new(error.kind(), message)
    };
    let there = File::open(path).map_err(|error| context("open", error))?;
    let enter = || {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(there.as_fd(), kind)
            .map_err(|error| context("enter", error.into()))?;
        f()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".into());
        let thread = thread.spawn_scoped(scope, enter)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}
