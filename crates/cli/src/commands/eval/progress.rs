//! Live progress of an experiment: a bar with the time left on a terminal, lines elsewhere.

use eval::run::Event;
use eval::units;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Shows progress.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    round: Option<u32>,
    /// Seconds that the experiments after this one will take, if there are any.
    later_seconds: Option<f64>,
}

impl Progress {
    /// Returns a bar on a terminal, otherwise lines.
    pub(super) fn new() -> Self {
        let style = ProgressStyle::with_template("{pos}/{len} {wide_bar} {msg}");
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            // Only a wrong template fails; the default has the same parts in another order.
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, round: None, later_seconds: None }
    }

    /// Returns the progress of one of several experiments; the others will take about this long
    /// after it.
    pub(super) fn before_others(later_seconds: f64) -> Self {
        Self { later_seconds: Some(later_seconds), ..Self::new() }
    }

    /// Returns the time left for this experiment, and for all if there are others.
    fn left(&self, seconds: f64) -> String {
        let all = self.later_seconds.map(|later| units::seconds(seconds + later));
        let all = all.map_or(String::new(), |all| format!(", about {all} for all"));
        format!("{} left{all}", units::seconds(seconds))
    }

    /// Shows an event.
    pub(super) fn show(&mut self, event: &Event) {
        match event {
            Event::Begin { round, what, done, total, seconds_left } => {
                let left = self.left(*seconds_left);
                if let Some(bar) = &self.bar {
                    bar.set_length(*total);
                    bar.set_position(*done);
                    bar.set_message(format!("{left}; round {round}, {what}"));
                } else if self.round != Some(*round) {
                    self.round = Some(*round);
                    let name =
                        if *round == 0 { "warming up".into() } else { format!("round {round}") };
                    eprintln!("{name}: {done} of {total} runs, {left}");
                }
            }
            Event::Note(text) => self.note(text),
        }
    }

    /// Shows a line.
    pub(super) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
