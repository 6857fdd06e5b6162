//! Live progress of an experiment: a bar with the time left on a terminal, lines elsewhere.

use eval::run::Event;
use eval::units;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Shows progress.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    round: Option<u32>,
    /// Seconds that other experiments are going to take after this one, if there are some.
    later_seconds: Option<f64>,
}

impl Progress {
    /// A bar, if somebody looks.
    pub(super) fn new() -> Self {
        let style = ProgressStyle::with_template("{pos}/{len} {wide_bar} {msg}");
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            // Only a wrong template makes an error; the default shows the same in another order.
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, round: None, later_seconds: None }
    }

    /// The same for one experiment of several: others take about so long after it.
    pub(super) fn before_others(later_seconds: f64) -> Self {
        Self { later_seconds: Some(later_seconds), ..Self::new() }
    }

    /// How long it takes still, and all with it.
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

    /// Takes the bar away.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
