//! Progress through data: a bar with rate and time left on a terminal, otherwise a line from time
//! to time.

use crate::deploy::size::human;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows the progress.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    begun: Instant,
    line: Instant,
}

impl Progress {
    /// Starts with nothing done.
    pub(crate) fn new() -> Progress {
        let form = "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec}, {eta} left {msg}";
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(form);
            // Only a wrong template fails; the default has the same parts in another order.
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Progress { bar, begun: Instant::now(), line: Instant::now() }
    }

    /// Shows that `done` bytes of about `all` are done.
    pub(crate) fn show(&mut self, done: u64, all: u64, findings: u64) {
        let all = all.max(done);
        let found = if findings == 0 { String::new() } else { format!("({findings} FOUND)") };
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_position(done);
            bar.set_message(found);
        } else if self.line.elapsed() >= LINE_EVERY {
            self.line = Instant::now();
            let rate = done as f64 / self.begun.elapsed().as_secs_f64();
            let left = if rate > 0.0 { (all - done) as f64 / rate } else { 0.0 };
            let (done, all, rate) = (human(done), human(all), human(rate as u64));
            eprintln!("{done} of {all}, {rate}/s, {left:.0} s left {found}");
        }
    }

    /// Calls `print` without damage to the bar.
    pub(crate) fn aside(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
