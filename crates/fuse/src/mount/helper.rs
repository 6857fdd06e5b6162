//! Mounting without root, through `fusermount3`.
//!
//! The helper gets one end of a socket pair (its number is in `_FUSE_COMMFD`) and sends the open
//! device back over it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Output};

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::MountOptions;
use crate::error::FuseError;

const HELPER: &str = "fusermount3";

/// Mounts and returns the open device.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, FuseError> {
    let failed = |message: String| FuseError::Helper {
        path: path.into(),
        advice: advice(&message),
        message,
    };
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|errno| failed(io::Error::from(errno).to_string()))?;
    // The helper inherits this end.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())
        .map_err(|errno| failed(io::Error::from(errno).to_string()))?;
    let output = Command::new(HELPER)
        .arg("-o")
        .arg(options.helper_options())
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FuseError::HelperMissing,
            _ => failed(error.to_string()),
        })?;
    drop(theirs);
    if !output.status.success() {
        return Err(failed(said(&output)));
    }
    receive_device(&ours).map_err(|error| failed(format!("it did not pass the device: {error}")))
}

/// Unmounts lazily.
pub(super) fn unmount(path: &Path) -> Result<(), String> {
    let output = Command::new(HELPER)
        .args(["-u", "-z", "--"])
        .arg(path)
        .output()
        .map_err(|error| format!("cannot run {HELPER}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(said(&output)) }
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    if text.is_empty() { output.status.to_string() } else { text.into() }
}

/// Returns advice for a message of the helper.
fn advice(message: &str) -> &'static str {
    if message.contains("user_allow_other") {
        " (put the line `user_allow_other` into /etc/fuse.conf, or mount without allow_other)"
    } else if message.contains("too many") || message.contains("mount_max") {
        " (unmount others, or raise `mount_max` in /etc/fuse.conf)"
    } else if message.contains("/dev/fuse") {
        " (load the module with `modprobe fuse`, and let users open /dev/fuse)"
    } else if message.contains("write access") || message.contains("ermission denied") {
        " (the mount point must be a directory that you own and can write)"
    } else {
        ""
    }
}

/// Receives the descriptor from the one message that the helper sends.
fn receive_device(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let (_, device) = super::mounter::receive(socket, &mut [0; 1])?;
    device
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "no descriptor in its message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the helper mounts, passes a device that works, and unmounts; a refusal states the
    /// reason.
    #[test]
    fn helper_passes_the_device() {
        let has_helper = Command::new(HELPER).arg("-V").output().is_ok();
        if !has_helper || std::fs::metadata("/dev/fuse").is_err() {
            let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!is_ci, "CI=true, but fusermount3 or /dev/fuse is missing");
            eprintln!("skipped: fusermount3 or /dev/fuse is missing");
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let device = mount(directory.path(), &MountOptions::default()).expect("mounted");
        let mut init = [0; 8192];
        let len = rustix::io::read(&device, &mut init).expect("INIT arrives");
        assert!(len >= 40 + 16, "{len} bytes");
        unmount(directory.path()).expect("unmounted");
        let error = mount(std::path::Path::new("/nonexistent"), &MountOptions::default());
        let error = error.expect_err("no such directory").to_string();
        assert!(error.contains("/nonexistent"), "{error}");
    }

    /// Goal: the common error messages come with advice.
    #[test]
    fn messages_have_advice() {
        let message = "fusermount3: option allow_other only allowed if 'user_allow_other' is set";
        assert!(advice(message).contains("fuse.conf"));
        assert!(advice("fusermount3: user has no write access to mountpoint /x").contains("own"));
        assert_eq!(advice("something else"), "");
    }
}
