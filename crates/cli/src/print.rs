//! Printing, for all commands: `println!`, `print!` and `eprintln!` of this crate are these.
//!
//! A reader that has seen enough (`tsumugi … | head`) closes its end. The standard macros panic then;
//! here what nobody reads is not said, and the command goes on to its end: what it is about to change
//! or to clean up matters more than who looks. Output that is lost for another reason (a full disk)
//! fails the command, once it is done.

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
