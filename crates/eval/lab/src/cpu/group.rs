//! A cgroup of our own: it counts the processes that are started in it, whatever their parent is.
//!
//! A container's processes are often no children of their requester, so the time of children does not include
//! theirs. Runtimes that create groups get the order to create them below ours, whose count keeps the use of
//! ended members. On machines with both versions it is one of version 1, as runtimes' groups are there.

use super::cgroup::{Cgroup, groups_of};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A group of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    directory: PathBuf,
    /// Its path from the root of the hierarchy.
    path: String,
    cgroup: Cgroup,
}

impl Group {
    /// Makes one below this process's, or says why that cannot be.
    pub fn make(name: &str) -> Result<Self, String> {
        let mut why = "no hierarchy of cgroups counts CPU time".to_string();
        let found = groups_of(std::process::id());
        // Version 1 first: see above.
        for (parent, path) in found.into_iter().rev() {
            match Self::below(&parent, &path, name) {
                Ok(group) => return Ok(group),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn below(parent: &Cgroup, path: &str, name: &str) -> Result<Self, String> {
        let (Some(above), Some(file)) = (parent.path().parent(), parent.path().file_name()) else {
            return Err("a cgroup has no directory".into());
        };
        let directory = above.join(name);
        fs::create_dir(&directory)
            .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        let file = directory.join(file);
        let cgroup = match parent {
            Cgroup::V2(_) => Cgroup::V2(file),
            Cgroup::V1(_) => Cgroup::V1(file),
        };
        if cgroup.used().is_none() {
            let _ = fs::remove_dir(&directory);
            return Err(format!("{} does not count", cgroup.path().display()));
        }
        let path = format!("{}/{name}", path.trim_end_matches('/'));
        Ok(Self { directory, path, cgroup })
    }

    /// What counts.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Its path from the root of the hierarchy, as runtimes take it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A command whose process is in it from its first instruction on.
    pub fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$1\" && shift && exec \"$@\"", "sh"]);
        inside.arg(self.directory.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            inside.current_dir(directory);
        }
        inside
    }

    /// The shell command that removes it with what runtimes left in it.
    pub fn leave(&self) -> String {
        leave(&self.directory)
    }
}

fn leave(directory: &Path) -> String {
    format!("find '{}' -depth -type d -exec rmdir {{}} ';'", directory.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loads::process;

    /// Goal: a group counts what a grandchild burns that nobody waits for, and is gone afterwards. (Where
    /// none can be made there is nothing to count.)
    #[test]
    fn groups_count_what_is_in_them() {
        let name = format!("tsumugi-eval-test-{}", std::process::id());
        let Ok(group) = Group::make(&name) else { return };
        assert!(group.path().ends_with(&name));
        let before = group.cgroup().used().unwrap();
        let burn = "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done) & wait";
        let mut command = Command::new("setsid");
        command.args(["--fork", "--wait", "sh", "-c", burn]);
        let run = process::succeed(&mut group.enter(&command));
        let used = group.cgroup().used().unwrap().checked_sub(before).unwrap();
        process::output("sh", &["-c", &group.leave()]).unwrap();
        run.unwrap();
        // A loop of so many turns takes tens of milliseconds anywhere.
        assert!(used > std::time::Duration::from_millis(10), "{used:?}");
        assert!(!group.directory.exists());
    }
}
