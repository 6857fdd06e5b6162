//! Output for programs, and of programs.

use std::process::{ExitCode, Output};

/// Prints JSON.
pub(crate) fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints what this program printed when it ran as another user, and ends as it ended.
pub(crate) fn relay(output: &Output) -> ExitCode {
    print!("{}", plain(&String::from_utf8_lossy(&output.stdout)));
    let errors = plain(&String::from_utf8_lossy(&output.stderr));
    if !errors.is_empty() {
        eprintln!("{}", errors.trim_end());
    }
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Text of another user, without what a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    let is_bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    text.chars().map(|c| if is_bad(c) { '?' } else { c }).collect()
}
