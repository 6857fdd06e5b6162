//! Several studies in one report: all findings, missing conditions, and studies that never ran.

use super::*;
use lab::plan::Plan;
use lab::store::RunFacts;
use lab::test_support::{experiment, measured};
use loads::outcome::Outcome;

/// Returns three studies: one with a planted finding, one that failed and lacked a condition, one that waits.
fn overview(language: Language) -> Overview {
    let plan = Plan::new(experiment(
        &[("Known truth", "Known <truth>"), ("ratio = 1.0", "ratio = 0.7")],
        Mode::Quick,
    ));
    let found = measured(&plan);
    found.set("started", "then").unwrap();
    let plan = Plan::new(experiment(&[("\"known\"", "\"lacking\"")], Mode::Quick));
    let mut lacking = Store::in_memory(&plan).unwrap();
    lacking.set_condition("storage=a", "A", None).unwrap();
    lacking.set_condition("storage=b", "B", Some("no such <device>")).unwrap();
    for step in plan.round(0).iter().filter(|step| plan.conditions[step.condition].label == "A") {
        let facts = RunFacts { step, started_unix_ms: 0, attempts: 1, marks: &[] };
        let error = base::Error::program("program", "it broke");
        lacking.add(&plan, &facts, Err::<&Outcome, _>(&error)).unwrap();
    }
    lacking.set("failure", "A failed 3 times in a row").unwrap();
    let waiting = Store::in_memory(&plan).unwrap();
    let stores = [(found, "found"), (lacking, "is lacking"), (waiting, "waiting")];
    let studies =
        stores.map(|(store, place)| Study::of(&store, place.into(), language).unwrap()).into();
    Overview::new(studies, language)
}

/// Goal: one page has the question, state, verdicts and advice of each study, the link to its own report,
/// what was not available and why, and what no study measured; it needs no external resources.
#[test]
fn overviews_have_all_studies() {
    let overview = overview(Language::English);
    let directory = tempfile::tempdir().unwrap();
    let path = overview.write(directory.path()).unwrap();
    let page = std::fs::read_to_string(path).unwrap();
    let mut from = 0;
    for part in [
        "1 of 3 studies were run to their end",
        "Quick form.",
        "href=\"#found\">Known &lt;truth&gt;</a>",
        "href=\"#islacking\"",
        "Failed: A failed 3 times in a row.",
        "Not begun.",
        "<section id=\"found\">",
        "Is the truth found?",
        "it ended because: every comparison was decided.",
        "href=\"found/report.html\"",
        "All that it asks for was there.",
        "different, matters",
        "A1 What does remote storage cost",
        "<section id=\"islacking\">",
        "href=\"is%20lacking/report.html\"",
        "<li>B: no such &lt;device&gt;</li>",
        "<li>A: 4 runs failed: program: it broke</li>",
        "not measured (B: no such &lt;device&gt;)",
        "Not measured by any of these studies",
        "A2</strong> What does a container cost? It needs",
        "Machine",
    ] {
        let at = page[from..].find(part).unwrap_or_else(|| panic!("{part} is not in {page}"));
        from += at;
    }
    assert_eq!(page.matches("<script").count(), 1, "only the one that sorts tables");
    for outside in ["http:", "https:", "src=", "url(", "@import", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let markdown = std::fs::read_to_string(directory.path().join("report.md")).unwrap();
    for part in ["* B: no such <device>", "| B/A | seq |", "* **A1 ", "(found/report.html)"] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    let json = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let states: Vec<&str> = json["studies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["ended", "failed", "not begun"]);
    assert_eq!(json["studies"][1]["not_available"][0][1], "no such <device>");
    assert_eq!(json["studies"][1]["failed_runs"], 4);
    assert_eq!(json["studies"][0]["verdicts"].as_array().unwrap().len(), 6);
    assert!(json["not_measured"].as_array().unwrap().iter().any(|it| it["rule"] == "A2"));
}

/// Goal: a study that was interrupted, or reached its time limit, does not count as complete.
#[test]
fn what_can_go_on_is_not_done() {
    let mut overview = overview(Language::English);
    let mut summary = |ending: Ending| {
        overview.studies[0].state = State::Ended(ending.label().into());
        overview.summary()
    };
    assert!(summary(Ending::AllRounds).starts_with("1 of 3"));
    for ending in [Ending::Interrupted, Ending::Limit(lab::ending::Limit::Time)] {
        assert!(summary(ending).starts_with("0 of 3"), "{ending:?}");
    }
}

/// Goal: the page is in the requested language, and JSON always in English.
#[test]
fn overviews_have_a_language_and_json_has_one() {
    let (english, japanese) = (overview(Language::English), overview(Language::Japanese));
    let page = page::page(&japanese).unwrap();
    for part in ["<html lang=\"ja\">", "調査の一覧", "差あり（重要）", "未着手", "簡易版"]
    {
        assert!(page.contains(part), "{part}");
    }
    for heading in [Message::Studies, Message::Unanswered, Message::Machine, Message::Advice] {
        assert!(!page.contains(&format!(">{}<", heading.english())), "{heading:?}");
    }
    let json = |overview: &Overview| -> Value {
        let mut json: Value = serde_json::from_str(&overview.json().unwrap()).unwrap();
        for study in json["studies"].as_array_mut().unwrap() {
            // Time of the run, and whether there is a Japanese font for PNGs.
            for fact in ["facts", "seconds"] {
                study.as_object_mut().unwrap().remove(fact);
            }
        }
        json
    };
    assert_eq!(json(&english), json(&japanese));
}
