//! Output for programs, and output of programs.

use std::process::{ExitCode, Output};

/// Prints JSON.
pub(crate) fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints the output of this program's run as another user. Returns its exit code.
pub(crate) fn relay(output: &Output) -> ExitCode {
    print!("{}", plain(&String::from_utf8_lossy(&output.stdout)));
    let errors = plain(&String::from_utf8_lossy(&output.stderr));
    if !errors.is_empty() {
        eprintln!("{}", errors.trim_end());
    }
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Returns text of another user without control characters for a terminal.
pub(crate) fn plain(text: &str) -> String {
    let is_bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    text.chars().map(|c| if is_bad(c) { '?' } else { c }).collect()
}
