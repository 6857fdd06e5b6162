//! Users of this machine, and acting as one of them.
//!
//! Root never acts with its own rights on data that another user wrote, because that user chose its
//! paths, processes and commands. Instead it starts this program again as the user.

use super::bounded;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Set for a program that root started as another user.
pub(crate) const FOR_ROOT: &str = "TSUMUGI_FOR_ROOT";
/// How much longer than its own deadline a program that root runs as a user may take, if it reaches
/// no other machine.
pub(crate) const GRACE: Duration = Duration::from_secs(40);
/// As [`GRACE`], if it may reach others.
pub(crate) const REMOTE_GRACE: Duration = Duration::from_mins(3);
/// Longest output of such a program.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    /// Number.
    pub(crate) uid: u32,
    /// Number of the primary group.
    pub(crate) gid: u32,
    /// Name.
    pub(crate) name: String,
    /// Home directory.
    #[serde(default)]
    pub(crate) home: PathBuf,
}

impl User {
    /// Finds a user by name or number.
    pub(crate) fn find(text: &str) -> anyhow::Result<User> {
        if text.is_empty() || text.contains([':', '\n']) || text.starts_with('-') {
            bail!("{text:?} cannot be a user's name");
        }
        let local = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let wanted = |user: &User| user.name == text || user.uid.to_string() == text;
        if let Some(user) = local.lines().filter_map(parse).find(wanted) {
            return Ok(user);
        }
        // For users of a directory service.
        let asked = Command::new("getent").args(["passwd", text]).stdin(Stdio::null()).output();
        let said = asked.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&said)
            .lines()
            .find_map(parse)
            .with_context(|| format!("there is no user {text} on this machine"))
    }

    /// Returns the user of this process. Containers often have no entry for it: then its number is
    /// its name.
    pub(crate) fn current() -> User {
        let uid = rustix::process::geteuid().as_raw();
        User::find(&uid.to_string()).unwrap_or_else(|_| User {
            uid,
            gid: rustix::process::getegid().as_raw(),
            name: uid.to_string(),
            home: std::env::var_os("HOME").map_or_else(|| "/".into(), PathBuf::from),
        })
    }

    /// Returns the name of a user's number, or the number.
    pub(crate) fn name_of(uid: u32) -> String {
        User::find(&uid.to_string()).map_or_else(|_| uid.to_string(), |user| user.name)
    }

    /// Returns the names of the user's groups, as far as this machine knows them.
    pub(crate) fn groups(&self) -> Vec<String> {
        let mut command = Command::new("id");
        command.args(["--groups", "--name", "--"]).arg(&self.name).env("LC_ALL", "C");
        let said = command.stdin(Stdio::null()).output().map(|output| output.stdout);
        let said = said.unwrap_or_default();
        String::from_utf8_lossy(&said).split_whitespace().map(String::from).collect()
    }

    /// Returns whether this is the user of this process.
    pub(crate) fn is_current(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }

    /// Runs this program as the user, out of reach of the terminal, and waits for its end. The user
    /// can stop the program, and make it print anything: root waits for a time only.
    ///
    /// # Errors
    /// If the program cannot be started, or does not end in time.
    pub(crate) fn run(&self, arguments: &[OsString], within: Duration) -> anyhow::Result<Output> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tsumugi").args(arguments).env_clear().env("PATH", PATH).env(FOR_ROOT, "1");
        command.env("HOME", &self.home).env("USER", &self.name).env("LOGNAME", &self.name);
        let runtime = format!("/run/user/{}", self.uid);
        if is_owned_by(Path::new(&runtime), self.uid) {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        if let Some(log) = std::env::var_os("TSUMUGI_LOG") {
            command.env("TSUMUGI_LOG", log);
        }
        if let Some(engine) = crate::commands::engine::insisted() {
            command.env(reactor::engine::choice::VARIABLE, engine);
        }
        command.uid(self.uid).gid(self.gid).current_dir("/");
        bounded::output(&mut command, OUTPUT_BYTES_MAX, within)
            .with_context(|| format!("cannot run this program as {}", self.name))?
            .with_context(|| {
                let within = humantime::format_duration(within);
                let name = &self.name;
                format!("this program, as {name}, did not end within {within}: {name} may have stopped it")
            })
    }
}

/// Leaves the terminal of the root shell that started this process.
pub(crate) fn leave_terminal() {
    if std::env::var_os(FOR_ROOT).is_some() {
        // This fails only for the leader of a process group, which has no such terminal.
        let _ = rustix::process::setsid();
    }
}

/// Returns whether a directory itself, not a link to one, belongs to a user.
pub(crate) fn is_owned_by(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|data| data.is_dir() && data.uid() == uid)
}

/// Parses a line of passwd(5).
fn parse(line: &str) -> Option<User> {
    let fields: Vec<_> = line.split(':').collect();
    Some(User {
        name: (*fields.first()?).into(),
        uid: fields.get(2)?.parse().ok()?,
        gid: fields.get(3)?.parse().ok()?,
        home: fields.get(5)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: users are found by name and number; nonsense is not.
    #[test]
    fn users_are_found() {
        let root = User::find("root").unwrap();
        assert_eq!((root.uid, root.name.as_str()), (0, "root"));
        assert_eq!(User::find("0").unwrap(), root);
        assert_eq!(User::name_of(0), "root");
        for bad in ["", "-x", "a:b", "no such user here"] {
            assert!(User::find(bad).is_err(), "{bad:?}");
        }
        assert_eq!(User::name_of(4_000_000_000), "4000000000");
    }
}
