//! Several studies as Markdown.

use super::{Overview, Study};
use crate::report::markdown::{advice, verdicts};
use base::messages::Message;
use std::fmt::{Display, Write as _};

/// Returns the page.
pub(super) fn page(overview: &Overview) -> String {
    let language = overview.language;
    let said = |message| language.text(message);
    let mut text = format!("# {}\n\n{}\n\n", said(Message::Studies), overview.summary());
    if overview.is_quick() {
        let (what, means) = (said(Message::QuickForm), said(Message::QuickFormMeans));
        let _ = writeln!(text, "**{what}** {means}\n");
    }
    for study in &overview.studies {
        section(&mut text, study);
    }
    let mut unanswered = overview.unanswered().peekable();
    if unanswered.peek().is_some() {
        let _ = writeln!(text, "## {}\n", said(Message::Unanswered));
    }
    for rule in unanswered {
        let (question, needs) = (said(rule.question), said(rule.needs));
        let values: [(&str, &dyn Display); 2] = [("question", &question), ("needs", &needs)];
        let line = language.say(Message::UnansweredNeeds, &values);
        let _ = writeln!(text, "* **{}** {line}", rule.id);
    }
    let _ = writeln!(text, "\n## {}\n", said(Message::Machine));
    for (names, facts) in overview.machines() {
        let _ = writeln!(text, "{}:\n", names.join(", "));
        for (name, value) in facts {
            let _ = writeln!(text, "* {name}: {value}");
        }
    }
    text
}

fn section(text: &mut String, study: &Study) {
    let experiment = &study.report.plan.experiment;
    let said = |message| study.report.language.text(message);
    let _ = writeln!(
        text,
        "## {}\n\n{}\n\n{} [{}]({})\n",
        experiment.title,
        experiment.question,
        study.state(),
        said(Message::StudyReport),
        study.link()
    );
    let lacks = study.lacks();
    let _ = writeln!(text, "### {}\n", said(Message::NotAvailable));
    if lacks.is_empty() {
        let _ = writeln!(text, "{}", said(Message::NothingLacks));
    }
    for (what, reason) in lacks {
        let _ = writeln!(text, "* {what}: {reason}");
    }
    let _ = writeln!(text, "\n### {}\n", said(Message::Verdicts));
    verdicts(text, &study.report);
    let _ = writeln!(text, "\n### {}\n", said(Message::Advice));
    advice(text, &study.report, study.advice());
    text.push('\n');
}
