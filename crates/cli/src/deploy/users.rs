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

/// How much longer than its own deadline a program that root runs as a user may take, if it reaches
/// no other machine.
pub(crate) const GRACE: Duration = Duration::from_secs(40);
/// As [`GRACE`], if it may reach others.
pub(crate) const REMOTE_GRACE: Duration = Duration::from_mins(3);
/// Longest output of such a program.
const OUTPUT_BYTES_MAX: usize = 64 << 20;
/// The group `nobody`, for users without an entry in this machine's passwd.
const NO_GROUP: u32 = 65534;
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
        Users::of_machine().find(text)
    }

    /// Finds a user by number. A user may have the number of another as a *name*, and is not meant.
    pub(crate) fn find_uid(uid: u32) -> anyhow::Result<User> {
        Users::of_machine().find_uid(uid)
    }

    /// Returns the user with a number. One that this machine does not know has no rights of a group.
    pub(crate) fn of_uid(uid: u32) -> User {
        let unknown = |_| User { uid, gid: NO_GROUP, name: uid.to_string(), home: "/".into() };
        User::find_uid(uid).unwrap_or_else(unknown)
    }

    /// Returns the user of this process. Containers often have no entry for it: then its number is
    /// its name.
    pub(crate) fn current() -> User {
        let uid = rustix::process::geteuid().as_raw();
        User::find_uid(uid).unwrap_or_else(|_| User {
            uid,
            gid: rustix::process::getegid().as_raw(),
            name: uid.to_string(),
            home: std::env::var_os("HOME").map_or_else(|| "/".into(), PathBuf::from),
        })
    }

    /// Returns the name of a user's number, or the number.
    pub(crate) fn name_of(uid: u32) -> String {
        User::find_uid(uid).map_or_else(|_| uid.to_string(), |user| user.name)
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
        self.run_for(arguments, OUTPUT_BYTES_MAX, within)
    }

    /// As [`User::run`], and reads no more than `bytes_max` of the output.
    ///
    /// # Errors
    /// As [`User::run`].
    pub(crate) fn run_for(
        &self,
        arguments: &[OsString],
        bytes_max: usize,
        within: Duration,
    ) -> anyhow::Result<Output> {
        bounded::output(self.program(arguments), bytes_max, within)
            .with_context(|| format!("cannot run this program as {}", self.name))?
            .with_context(|| {
                let within = humantime::format_duration(within);
                let name = &self.name;
                format!("this program, as {name}, did not end within {within}: {name} may have stopped it")
            })
    }

    /// Returns this program as the user. It begins in a session of its own: it must never have the
    /// terminal of root's shell.
    pub(crate) fn program(&self, arguments: &[OsString]) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tsumugi").args(arguments).env_clear().env("PATH", PATH);
        command.env("HOME", &self.home).env("USER", &self.name).env("LOGNAME", &self.name);
        let runtime = format!("/run/user/{}", self.uid);
        if is_owned_by(Path::new(&runtime), self.uid) {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        if let Some(log) = std::env::var_os("TSUMUGI_LOG") {
            command.env("TSUMUGI_LOG", log);
        }
        if let Some(engine) = crate::engine::insisted() {
            command.env(reactor::engine::choice::VARIABLE, engine);
        }
        command.uid(self.uid).gid(self.gid).current_dir("/");
        reactor::child::in_own_session(&mut command);
        command
    }
}

/// The users that a machine knows.
struct Users {
    /// The text of `/etc/passwd`.
    local: String,
}

impl Users {
    fn of_machine() -> Users {
        Users { local: std::fs::read_to_string("/etc/passwd").unwrap_or_default() }
    }

    /// A name comes before a number, as for chown(1).
    fn find(&self, text: &str) -> anyhow::Result<User> {
        if let Some(user) = self.look_up(text, |user| user.name == text) {
            return Ok(user);
        }
        match text.parse() {
            Ok(uid) => self.find_uid(uid),
            Err(_) => bail!("there is no user {text} on this machine"),
        }
    }

    fn find_uid(&self, uid: u32) -> anyhow::Result<User> {
        self.look_up(&uid.to_string(), |user| user.uid == uid)
            .with_context(|| format!("there is no user {uid} on this machine"))
    }

    fn look_up(&self, key: &str, is_wanted: impl Fn(&User) -> bool) -> Option<User> {
        if let Some(user) = self.local.lines().filter_map(parse).find(&is_wanted) {
            return Some(user);
        }
        // For users of a directory service, which may take a name for a number or the reverse.
        let asked = Command::new("getent").args(["passwd", key]).stdin(Stdio::null()).output();
        let said = asked.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&said).lines().filter_map(parse).find(is_wanted)
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

    /// Goal: a user whose name is the number of another is not taken for that other one.
    #[test]
    fn numbers_are_not_names() {
        let local = "4711:x:4712:1::/a:/bin/sh\nmallory:x:4713:1::/b:/bin/sh\n\
                     alice:x:4711:2::/c:/bin/sh\n";
        let users = Users { local: local.into() };
        assert_eq!(users.find_uid(4711).unwrap().name, "alice");
        assert_eq!(users.find("4711").unwrap().uid, 4712, "a name comes first");
        assert_eq!(users.find("4713").unwrap().name, "mallory");
        assert!(users.find_uid(4714).is_err());
        assert_eq!(User::of_uid(4_000_000_000).gid, NO_GROUP);
    }

    /// Started by the next test, as another user.
    #[test]
    #[ignore = "a part of another test"]
    fn says_its_session() {
        println!("{}", std::fs::read_to_string("/proc/self/stat").unwrap());
    }

    /// Goal: what root runs as a user is never in root's session, where it could type into root's
    /// terminal. Expected: from the first instruction of the program another session, no terminal.
    #[test]
    fn users_programs_have_no_terminal() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let user = User { home: "/".into(), ..User::of_uid(65534) };
        let words =
            ["--ignored", "--exact", "--nocapture", "deploy::users::tests::says_its_session"];
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let output = user.run(&words, Duration::from_mins(1)).unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = said.lines().find(|line| line.contains(") R ") || line.contains(") S "));
        let fields: Vec<_> = line.unwrap().rsplit_once(") ").unwrap().1.split(' ').collect();
        let own = rustix::process::getsid(None).unwrap().as_raw_nonzero();
        assert_ne!(fields[3], own.to_string(), "{said}");
        assert_eq!(fields[4], "0", "{said}");
    }
}
