//! Striping that a script asks for: by `lfs setstripe`, which makes the file, on Lustre; elsewhere it
//! is not available. (How our own file system stripes is a property of a directory: `tsumugi stripe`.)

use super::crew::IorError;
use super::parameters::Striping;
use crate::error::Error;
use crate::experiment::ior::Stripe;
use crate::process;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `LL_SUPER_MAGIC` of Lustre's `lustre_user.h`.
const LUSTRE_MAGIC: i64 = 0x0bd0_0bd0;

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

/// What a directory's file system stripes by.
fn tool(directory: &Path, program: &Path) -> Option<Tool> {
    if is_lustre(directory) {
        return Some(Tool::Lustre);
    }
    let mut command = Command::new(program);
    command.args(["stripe", "get"]).arg(directory);
    process::succeed(&mut command).is_ok().then_some(Tool::Ours)
}

enum Tool {
    Lustre,
    Ours,
}

/// Whether files below a directory can be striped, or why not.
pub fn check(directory: &Path, program: &Path) -> Result<(), String> {
    tool(directory, program).map(drop).ok_or_else(|| {
        format!("striping: {} is neither on Lustre nor on our own file system", directory.display())
    })
}

/// Makes new files in a directory be striped so, and reads it back.
pub(super) fn set(wanted: Stripe, directory: &Path, program: &Path) -> Result<(), Error> {
    let Stripe { count, bytes } = wanted;
    let (mut set, mut get) = match tool(directory, program) {
        Some(Tool::Lustre) => (Command::new("lfs"), Command::new("lfs")),
        Some(Tool::Ours) => (Command::new(program), Command::new(program)),
        None => return Err(Error::program("stripe", format!("not on {}", directory.display()))),
    };
    let is_lustre = is_lustre(directory);
    let (count_flag, bytes_flag) =
        if is_lustre { ("-c", "-S") } else { ("--stripe-count", "--stripe-size") };
    if is_lustre {
        set.arg("setstripe");
        get.args(["getstripe", "-d"]);
    } else {
        set.args(["stripe", "set"]);
        get.args(["stripe", "get"]);
    }
    if let Some(count) = count {
        set.arg(format!("{count_flag}={count}").replace("-c=", "-c"));
    }
    if let Some(bytes) = bytes {
        set.arg(format!("{bytes_flag}={bytes}").replace("-S=", "-S"));
    }
    process::succeed(set.arg(directory))?;
    let said = process::succeed(get.arg(directory))?;
    for value in [count.map(|it| it.to_string()), bytes.map(|it| it.to_string())] {
        let words = || said.split(|c: char| c.is_whitespace() || c == '=');
        if let Some(value) = value.filter(|value| !words().any(|word| word == value)) {
            return Err(Error::program("stripe", format!("{value} is not read back: {said}")));
        }
    }
    Ok(())
}
