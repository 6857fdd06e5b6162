//! Striping that a script asks for: by `lfs setstripe`, which makes the file, on Lustre; elsewhere it
//! is not available. (How our own file system stripes is a property of a directory: `tsumugi stripe`.)

use super::crew::IorError;
use super::parameters::Striping;
use crate::level::Missing;
use crate::process;
use base::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `LL_SUPER_MAGIC` of Lustre's `lustre_user.h`.
const LUSTRE_MAGIC: i64 = 0x0bd0_0bd0;

/// Striping of new files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stripe {
    /// Devices per file; -1 for all.
    pub count: Option<i32>,
    /// Bytes per stripe.
    pub bytes: Option<u64>,
}

/// Whether a directory is on Lustre.
pub fn is_lustre(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|stat| stat.f_type == LUSTRE_MAGIC)
}

/// Makes files with this striping.
pub(super) fn apply(striping: Striping, files: &[PathBuf]) -> Result<(), IorError> {
    if striping == Striping::default() {
        return Ok(());
    }
    for path in files {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !is_lustre(directory) {
            return Err(IorError::NotAvailable(format!(
                "{} is not on Lustre: leave lustreStripe… out, or name a file on Lustre",
                path.display()
            )));
        }
        let mut command = Command::new("lfs");
        command.arg("setstripe");
        if let Some(count) = striping.count {
            command.args(["-c", &count.to_string()]);
        }
        if let Some(bytes) = striping.bytes {
            command.args(["-S", &bytes.to_string()]);
        }
        if let Some(start) = striping.start {
            command.args(["-i", &start.to_string()]);
        }
        process::succeed(command.arg(path))
            .map_err(|error| IorError::NotAvailable(error.to_string()))?;
    }
    Ok(())
}

/// What stripes a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    /// `lfs`
    Lustre,
    /// `tsumugi stripe`
    Ours,
}

impl Tool {
    /// That of a directory.
    fn of(directory: &Path, program: &Path) -> Option<Self> {
        if is_lustre(directory) {
            return Some(Self::Lustre);
        }
        process::succeed(&mut Self::Ours.get(directory, program)).is_ok().then_some(Self::Ours)
    }

    fn get(self, directory: &Path, program: &Path) -> Command {
        let (name, words): (&Path, &[&str]) = match self {
            Self::Lustre => (Path::new("lfs"), &["getstripe", "-d"]),
            Self::Ours => (program, &["stripe", "get"]),
        };
        let mut command = Command::new(name);
        command.args(words).arg(directory);
        command
    }

    fn set(self, wanted: Stripe, directory: &Path, program: &Path) -> Command {
        let (name, words, flags): (&Path, &[&str], _) = match self {
            Self::Lustre => (Path::new("lfs"), &["setstripe"], ["-c", "-S"]),
            Self::Ours => (program, &["stripe", "set"], ["--stripe-count", "--stripe-size"]),
        };
        let mut command = Command::new(name);
        command.args(words);
        let values = [wanted.count.map(|it| it.to_string()), wanted.bytes.map(|it| it.to_string())];
        for (flag, value) in flags.into_iter().zip(values) {
            match (self, value) {
                (_, None) => {}
                (Self::Lustre, Some(value)) => {
                    command.args([flag, &value]);
                }
                // Joined, as -1 would be taken for an option.
                (Self::Ours, Some(value)) => {
                    command.arg(format!("{flag}={value}"));
                }
            }
        }
        command.arg(directory);
        command
    }
}

/// Whether files below a directory can be striped, or why not.
pub(super) fn check(directory: &Path, program: &Path) -> Result<(), Missing> {
    Tool::of(directory, program).map(drop).ok_or_else(|| {
        let directory = directory.display();
        Missing(format!("striping: {directory} is neither on Lustre nor on our own file system"))
    })
}

/// Makes new files in a directory be striped so, and reads it back.
pub(super) fn set(wanted: Stripe, directory: &Path, program: &Path) -> Result<(), Error> {
    let tool = Tool::of(directory, program)
        .ok_or_else(|| Error::program("stripe", format!("not on {}", directory.display())))?;
    process::succeed(&mut tool.set(wanted, directory, program))?;
    let said = process::succeed(&mut tool.get(directory, program))?;
    let values = [wanted.count.map(|it| it.to_string()), wanted.bytes.map(|it| it.to_string())];
    for value in values.into_iter().flatten() {
        let mut words = said.split(|c: char| c.is_whitespace() || c == '=');
        if !words.any(|word| word == value) {
            return Err(Error::program("stripe", format!("{value} is not read back: {said}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the commands are those that `lfs` and `tsumugi stripe` take; a directory that neither
    /// stripes is not available, for scripts and for experiments.
    #[test]
    fn commands_are_those_of_the_tools() {
        let (directory, program) = (Path::new("/d"), Path::new("/bin/tsumugi"));
        let wanted = Stripe { count: Some(-1), bytes: Some(4096) };
        let shown = |tool: Tool| process::shown(&tool.set(wanted, directory, program));
        assert_eq!(shown(Tool::Lustre), "lfs setstripe -c -1 -S 4096 /d");
        let ours = "/bin/tsumugi stripe set --stripe-count=-1 --stripe-size=4096 /d";
        assert_eq!(shown(Tool::Ours), ours);
        let here = tempfile::tempdir().unwrap();
        assert!(
            check(here.path(), Path::new("/bin/false"))
                .unwrap_err()
                .to_string()
                .contains("neither")
        );
        let striping = Striping { count: Some(2), ..Striping::default() };
        let error = apply(striping, &[here.path().join("file")]).unwrap_err();
        assert!(error.to_string().contains("not on Lustre"), "{error}");
    }
}
