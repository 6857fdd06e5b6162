//! Striping that a script asks for: by `lfs setstripe`, which makes the file, on Lustre; elsewhere it
//! is not available. (How our own file system stripes is a property of a directory: `tsumugi stripe`.)

use super::crew::IorError;
use super::parameters::Striping;
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
