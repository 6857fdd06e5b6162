//! Printing, for all commands: `println!`, `print!` and `eprintln!` of this crate are these.
//!
//! A reader that has seen enough (`tsumugi … | head`) closes its end. The standard macros panic
//! then; here what nobody reads is not said, and the command goes on to its end: what it is about
//! to change or to clean up matters more than who looks. Output that is lost for another reason (a
//! full disk) fails the command, once it is done.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// What first kept output from being written.
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

/// Prints a line to standard error: if that cannot be written either, nobody can be told.
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

/// What first kept output from being written, if something did.
pub(crate) fn lost() -> Option<&'static io::Error> {
    LOST.get()
}

/// An error with its causes, each once: messages of our crates have their cause's words in them
/// already.
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

    /// Goal: a cause that its error's message has in it is not printed again; another one is.
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
