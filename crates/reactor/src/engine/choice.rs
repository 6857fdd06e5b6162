//! The engine that a process uses, and the reason.
//!
//! The choice is made once, by trying. The kernel's version is not enough: a sysctl or a seccomp
//! filter may forbid a feature, or a distribution may leave it out.

use super::uring::setup;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::OnceLock;

/// The environment variable that requires an engine; child programs inherit it.
pub const VARIABLE: &str = "TSUMUGI_ENGINE";

/// An engine of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One io_uring for each thread.
    Uring,
    /// One epoll instance for each thread, and a bounded pool of threads for files.
    Epoll,
}

impl Kind {
    /// Both engines.
    pub const ALL: [Self; 2] = [Self::Uring, Self::Epoll];

    /// Its name: `io_uring` or `epoll`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "io_uring",
            Self::Epoll => "epoll",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("{name:?} is not an engine: io_uring or epoll"))
    }
}

/// The engine of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub kind: Kind,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind, self.reason)
    }
}

/// Requires an engine, for this process and all programs that it starts. Has no effect on a process
/// that has chosen already.
///
/// # Errors
/// If the process already has other threads, or their number is unknown: the environment is changed.
pub fn insist(kind: Kind) -> io::Result<()> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the engine has to be chosen before other threads start"));
    }
    // SAFETY: no other thread runs that could read the environment meanwhile.
    unsafe { std::env::set_var(VARIABLE, kind.name()) };
    Ok(())
}

/// Returns the engine of this process: the one that [`VARIABLE`] names, otherwise the first that
/// works.
///
/// # Errors
/// If the variable names no engine, or one that does not work here.
pub fn choice() -> io::Result<&'static Choice> {
    static CHOICE: OnceLock<Result<Choice, (io::ErrorKind, String)>> = OnceLock::new();
    let made = CHOICE.get_or_init(|| {
        let wanted = match std::env::var(VARIABLE) {
            Err(_) => None,
            Ok(name) if name.is_empty() => None,
            Ok(name) => Some(name),
        };
        choose(wanted.as_deref()).map_err(|error| (error.kind(), error.to_string()))
    });
    made.as_ref().map_err(|(kind, text)| io::Error::new(*kind, text.clone()))
}

fn choose(wanted: Option<&str>) -> io::Result<Choice> {
    let wanted = wanted
        .map(str::parse::<Kind>)
        .transpose()
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, format!("{VARIABLE}: {why}")))?;
    match wanted {
        Some(Kind::Epoll) => Ok(Choice { kind: Kind::Epoll, reason: "it was asked for".into() }),
        Some(Kind::Uring) => {
            let level = setup::level().map_err(|error| {
                let text = format!("the engine io_uring was asked for and cannot be had: {error}");
                io::Error::new(error.kind(), text)
            })?;
            let reason = format!("it was asked for; {}", level.reason());
            Ok(Choice { kind: Kind::Uring, reason })
        }
        None => Ok(match setup::level() {
            Ok(level) => Choice { kind: Kind::Uring, reason: level.reason().into() },
            Err(error) => Choice { kind: Kind::Epoll, reason: error.to_string() },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a required engine is used or gives an error; without a requirement one that works is
    /// chosen.
    #[test]
    fn choices_are_made_by_trying() {
        let epoll = choose(Some("epoll")).unwrap();
        assert_eq!(
            (epoll.kind, epoll.to_string().as_str()),
            (Kind::Epoll, "epoll (it was asked for)")
        );
        let error = choose(Some("uring")).unwrap_err().to_string();
        assert!(error.contains("TSUMUGI_ENGINE") && error.contains("io_uring or epoll"), "{error}");
        let free = choose(None).unwrap();
        match choose(Some("io_uring")) {
            Ok(uring) => assert_eq!((uring.kind, free.kind), (Kind::Uring, Kind::Uring)),
            Err(error) => {
                assert_eq!(free.kind, Kind::Epoll);
                assert!(error.to_string().contains("asked for"), "{error}");
                assert!(error.to_string().contains(&free.reason), "{error}");
            }
        }
    }
}
