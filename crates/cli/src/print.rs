//! Printing, for all commands: `println!`, `print!` and `eprintln!` of this crate are these.
//!
//! A reader may close its end early (`tsumugi … | head`). The standard macros then panic. These
//! drop the output, and the command continues to its end, because its changes and its cleanup
//! matter more than its output. If output is lost for another reason (a full disk), the command
//! fails when it is done.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// The first error that kept output from being written.
static LOST: OnceLock<io::Error> = OnceLock::new();

macro_rules! println {
    ($($text:tt)*) => { $crate::print::out(format_args!($($text)*), "\n") };
}
macro_rules! print {
    ($($text:tt)*) => { $crate::print::out(format_args!($($text)*), "") };
}
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::print::error(format_args!($($text)*)) };
}

/// Prints to standard output.
pub(crate) fn out(text: Arguments<'_>, end: &str) {
    let mut out = io::stdout().lock();
    keep(write!(out, "{text}{end}").and_then(|()| out.flush()));
}

/// Prints a line to standard error. If that fails, the failure cannot be reported.
pub(crate) fn error(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn keep(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error);
    }
}

/// Returns the first error that kept output from being written, if there was one.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// Returns an error with its causes, each once: messages of our crates already contain the words of
/// their causes.
pub(crate) fn words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let cause = cause.trim();
        if cause.is_empty() || text.contains(cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(cause);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    /// Goal: a cause that its error's message contains is not printed again; another one is.
    #[test]
    fn causes_are_printed_once() {
        let missing = || std::path::PathBuf::from("/nonexistent/config.toml");
        let error = node::NodeConfig::read(&missing()).unwrap_err();
        let text = words(&anyhow::Error::new(error).context("cannot start"));
        assert_eq!(text.matches("No such file or directory").count(), 1, "{text}");
        assert!(text.starts_with("cannot start: cannot read /nonexistent/config.toml"), "{text}");
        let error = std::fs::read(missing()).context("cannot read it").unwrap_err();
        assert_eq!(words(&error), "cannot read it: No such file or directory (os error 2)");
    }
}
