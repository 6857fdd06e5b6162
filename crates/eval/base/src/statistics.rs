//! The statistics of crate `stats`, and the words for their verdicts.

use crate::messages::{Language, Message};
pub use stats::*;

/// Words for a result in a language of reports.
pub trait Label {
    /// Returns the result in words.
    fn label(self, language: Language) -> String;
}

impl Label for Withheld {
    fn label(self, language: Language) -> String {
        language
            .text(match self {
                Self::Trend => Message::WithheldTrend,
                Self::Step => Message::WithheldStep,
                Self::Order => Message::WithheldOrder,
                Self::CarryOver => Message::WithheldCarryOver,
                Self::Autocorrelated => Message::WithheldAutocorrelated,
                Self::Cliff => Message::WithheldCliff,
                Self::Stalls => Message::WithheldStalls,
            })
            .into()
    }
}

impl Label for Inconclusive {
    fn label(self, language: Language) -> String {
        match self {
            Self::NeedsMore(Some(more)) => language.say(Message::NeedsMore, &[("more", &more)]),
            Self::NeedsMore(None) => {
                language.say(Message::NeedsMany, &[("most", &ROUNDS_NEEDED_MAX)])
            }
            Self::Outliers => language.text(Message::Outliers).into(),
            Self::NoData => language.text(Message::NoData).into(),
            Self::NotDue(rounds) => language.say(Message::NotDue, &[("rounds", &rounds)]),
            Self::Withheld(why) => why.label(language),
        }
    }
}

impl Label for Verdict {
    fn label(self, language: Language) -> String {
        match self {
            Self::Equivalent => language.text(Message::Equivalent).into(),
            Self::DifferentMatters => language.text(Message::DifferentMatters).into(),
            Self::DifferentSmall => language.text(Message::DifferentSmall).into(),
            Self::Inconclusive(why) => why.label(language),
        }
    }
}

/// Returns the verdict in words, with a mark († and the number of comparisons) if the comparison alone would
/// have another verdict.
pub fn marked_label(evidence: &Evidence, verdict: Verdict, language: Language) -> String {
    let mark = if evidence.is_held_back(verdict) {
        language.say(Message::HeldBackMark, &[("all", &evidence.judged_together)])
    } else {
        String::new()
    };
    verdict.label(language) + &mark
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a verdict that other comparisons weaken carries a mark; other verdicts do not.
    #[test]
    fn what_other_cells_take_back_is_marked() {
        let near = vec![0.14, 0.01, 0.15, 0.01, 0.12, 0.02, 0.13, 0.02];
        let margin = 1.05_f64.ln();
        let label = |together: usize| {
            let stake = Stake::of_report(1, together);
            let (evidence, verdict) = judge(&near, margin, stake);
            marked_label(&evidence, verdict, Language::English)
        };
        assert!(label(12).ends_with(" († of 12)"), "{}", label(12));
        assert!(!label(1).contains('†'), "{}", label(1));
    }
}
