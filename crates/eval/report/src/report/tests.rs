//! A report of a synthetic experiment: complete, self-contained, and in every form.

use super::*;
use base::statistics::{Inconclusive, Verdict};
use lab::experiment::Mode;
use lab::import::Record;
use lab::store::RunFacts;
use lab::test_support::{experiment, measured, run_synthetic};
use loads::metric::Metric;
use loads::outcome::Outcome;

fn report(changes: &[(&str, &str)], mode: Mode) -> Report {
    Report::of(&measured(&Plan::new(experiment(changes, mode)))).unwrap()
}

/// Goal: the page has all parts in their order, needs no external resources, escapes its input, and stays
/// small.
#[test]
fn pages_are_complete_and_self_contained() {
    let changes = [("Known truth", "Known <truth> & more"), ("ratio = 1.0", "ratio = 0.7")];
    let report = report(&changes, Mode::Quick);
    let directory = tempfile::tempdir().unwrap();
    let path = report.write(directory.path()).unwrap();
    let page = std::fs::read_to_string(path).unwrap();
    let mut from = 0;
    for part in [
        "Known &lt;truth&gt; &amp; more",
        "Quick form",
        "Verdicts",
        "\u{a0}%), n\u{a0}=\u{a0}6: different, matters",
        "<figure>",
        "seq</h2>",
        "rand</h2>",
        "Advice",
        "A1 ·",
        "A18 ·",
        "Method and environment",
        "Data",
        "data:text/csv;base64,",
        "Commands",
    ] {
        let at =
            page[from..].find(part).unwrap_or_else(|| panic!("{part} is missing after {from}"));
        from += at;
    }
    assert_eq!(page.matches("<script").count(), 1, "only the one that sorts tables");
    assert!(page.contains("<table class=\"sortable\">"));
    for outside in ["http-equiv", "fetch(", "import ", "src=", "url(", "@import", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
    // The name of SVG's own namespace is no address that is fetched.
    let page_without = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!page_without.contains("http://") && !page_without.contains("https://"));
    assert!(page.len() < 1_000_000);
    for name in ["report.md", "results.csv", "results.json", "charts/c10-forest.svg"] {
        assert!(directory.path().join(name).exists(), "{name}");
    }
    let csv = std::fs::read_to_string(directory.path().join("results.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 7 * 8);
    let json = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["verdicts"].as_array().unwrap().len(), 6);
    let values = json["values"].as_array().unwrap();
    assert_eq!(values.len(), 2 * 6);
    for verdict in json["verdicts"].as_array().unwrap() {
        for side in ["baseline", "other"] {
            let is_side = |value: &&serde_json::Value| {
                value["condition"] == verdict[side]
                    && ["workload", "metric", "block_size", "jobs"]
                        .iter()
                        .all(|key| value[key] == verdict[key])
            };
            let value = values.iter().find(is_side).unwrap();
            let number = |value: &serde_json::Value| value.as_f64().unwrap();
            let interval = &value["interval"];
            assert!(number(&interval["low"]) <= number(&value["median"]));
            assert!(
                number(&value["median"]) <= number(&interval["high"]) && value["n"] == verdict["n"]
            );
        }
    }
    assert_eq!(json["advice"].as_array().unwrap().len(), crate::advice::RULES.len());
}

/// Goal: a verdict that differs from its interval is marked wherever both stand, with the meaning of the
/// mark; a page without such a verdict does not mention the mark.
#[test]
fn verdicts_that_are_held_back_are_marked() {
    let changes = [("ratio = 1.0", "ratio = 0.7")];
    let mut report = report(&changes, Mode::Quick);
    let forms = |report: &Report| [html::page(report), report.markdown()];
    for form in forms(&report) {
        assert!(!form.contains('†'), "{form}");
    }
    let row = &mut report.analysis.families[0].rows[0];
    row.evidence.alone = row.verdict;
    row.verdict = Verdict::Inconclusive(Inconclusive::NeedsMore(Some(3)));
    row.evidence.judged_together = 12;
    // Beside the sentence and in the table of its workload, where no line ends within it; a Markdown report
    // has one table.
    for (form, (places, space)) in forms(&report).iter().zip([(2, "\u{a0}"), (1, " ")]) {
        let said = format!("inconclusive, need about 3{space}more (†{space}of{space}12)");
        assert_eq!(form.matches(&said).count(), places);
        assert_eq!(form.matches(Message::HeldBack.english()).count(), places);
    }
    // Advice shows the mark, too, if its evidence is marked.
    report.cards[0].evidence.push("A: inconclusive († of 12)".into());
    assert_eq!(html::page(&report).matches(Message::HeldBack.english()).count(), 3);
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    let held_back = |index: usize| json["verdicts"][index]["is_held_back"].as_bool().unwrap();
    assert!(held_back(0) && !held_back(1));
    assert_eq!(json["verdicts"][0]["verdict"], "inconclusive, need about 3 more");
    assert_eq!(json["verdicts"][0]["verdict_alone"], "different, matters");
    assert_eq!(json["verdicts"][0]["judged_together"], 12);
}

/// Goal: charts follow light and dark, and have accessible names.
#[test]
fn charts_take_the_colours_of_the_page() {
    let report = report(&[], Mode::Full);
    let names: Vec<&str> = report.figures.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names, ["c10-forest", "c1-seq", "c1-ratio-seq", "c2-rand", "c2-ratio-rand"]);
    let page = html::page(&report);
    assert!(page.contains("var(--ink)") && page.contains("var(--grid)"));
    assert!(!page.contains("#101112\"") && !page.contains("#D1D2D3"));
    assert_eq!(page.matches("<svg role=\"img\" aria-label=\"").count(), 5);
}

/// Goal: a workload that varies in depth only has a chart, too.
#[test]
fn depths_have_charts() {
    let changes = [("jobs = [1, 4]", "jobs = [1]\ndepth = [1, 4, 16]")];
    let report = report(&changes, Mode::Full);
    let figure = report.figures.iter().find(|figure| figure.name == "c2-rand").unwrap();
    assert!(figure.svg.contains("operations under way per job"), "{}", figure.svg);
}

/// Goal: the experiment's language is that of page, charts and Markdown, and no English heading is left.
#[test]
fn reports_have_their_language() {
    let changes = [("engine = \"synthetic\"", "engine = \"synthetic\"\nlanguage = \"ja\"")];
    let report = report(&changes, Mode::Quick);
    let (page, markdown) = (html::page(&report), report.markdown());
    assert!(page.contains("<html lang=\"ja\">"));
    for part in
        ["<h2>判定</h2>", "<h2>助言</h2>", "簡易版", "4 KiB, 1 ジョブ", "帯域幅 (MiB/s)", "確信度"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert!(markdown.contains("## 判定") && markdown.contains("| 同等 |"), "{markdown}");
    for heading in [Message::Verdicts, Message::Advice, Message::Method, Message::Confidence] {
        assert!(!page.contains(&format!(">{}<", heading.english())), "{heading:?}");
    }
    let curves = report.figures.iter().find(|figure| figure.name == "c1-seq").unwrap();
    assert!(curves.svg.contains("ブロックサイズ") && !curves.svg.contains("block size"));
}

/// Goal: JSON is the same whatever the language of the page: its facts, advice and verdicts are those of an
/// English report.
#[test]
fn json_is_in_english_whatever_the_language() {
    let store = measured(&Plan::new(experiment(&[("ratio = 1.0", "ratio = 0.7")], Mode::Quick)));
    let report = |language| Report::in_language(&store, Some(language)).unwrap();
    let japanese = report(Language::Japanese);
    let text = japanese.json().unwrap();
    let is_cjk = |letter: char| ('\u{3000}'..'\u{a000}').contains(&letter);
    let line = text.lines().find(|line| line.contains(is_cjk));
    assert!(line.is_none(), "{line:?}");
    assert!(japanese.markdown().contains(is_cjk) && !japanese.csv().contains(is_cjk));
    let parts = |text: &str| {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        ["advice", "verdicts", "not_available", "environment"].map(|part| json[part].clone())
    };
    assert_eq!(parts(&text), parts(&report(Language::English).json().unwrap()));
}

/// Goal: each chart of the list is drawn where its data is, and only there.
#[test]
fn charts_are_drawn_where_their_data_is() {
    let changes = [
        ("jobs = [1, 4]", "jobs = [1, 2, 4]\ndepth = [1, 4]"),
        (
            "bs = [\"4KiB\", \"1MiB\"]\njobs = [4]",
            "bs = [\"4KiB\", \"64KiB\", \"1MiB\"]\njobs = [1, 4]",
        ),
        ("[factors.storage.a]", "[limits]\nlink-rate = \"1GiB\"\n\n[factors.storage.a]"),
    ];
    let plan = Plan::new(experiment(&changes, Mode::Full));
    let mut store = Store::in_memory(&plan).unwrap();
    run_synthetic(&plan, &mut store);
    let names = |store: &Store| -> Vec<String> {
        let report = Report::of(store).unwrap();
        report.figures.iter().map(|figure| figure.name.clone()).collect()
    };
    let without = names(&store);
    for name in ["c3-rand-4KiB", "c8-seq", "c9-seq", "c9-rand", "c4-rand-4KiB"] {
        assert!(without.iter().any(|it| it == name), "{name}: {without:?}");
    }
    assert!(!without.iter().any(|name| name.starts_with("c11") || name.starts_with("c12")));
    // One more round, whose runs have more series.
    let outcome = Outcome {
        series: vec![1e6, 2e6, 2e6, 2e6, 2e6, 2e6],
        raw: r#"{"histogram_ns":[[1000,5000],[8000,5000]]}"#.into(),
        ..Outcome::default()
    };
    for step in plan.round(999) {
        let facts = RunFacts { step: &step, started_unix_ms: 0, attempts: 1, marks: &[] };
        store.add(&plan, &facts, Ok(&outcome)).unwrap();
    }
    let report = Report::of(&store).unwrap();
    let figure = |name: &str| report.figures.iter().find(|it| it.name == name).unwrap();
    assert!(figure("c11-seq").caption.contains("n = 12 runs"), "{}", figure("c11-seq").caption);
    assert!(figure("c12-rand").svg.contains("0.1 %"), "{}", figure("c12-rand").svg);
    let roof = figure("c9-seq");
    assert!(roof.caption.contains("the link (level: 1024 MiB/s)"), "{}", roof.caption);
}

/// Goal: base64 as RFC 4648 has it.
#[test]
fn base64_is_that_of_the_rfc() {
    for (text, encoded) in
        [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
    {
        assert_eq!(export::base64(text.as_bytes()), encoded);
    }
}

/// Goal: a page on imported results says that other programs measured them.
#[test]
fn imported_results_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let records = (0..8)
        .map(|index| Record {
            workload: "theirs".into(),
            way: "libaio".into(),
            block_bytes: 4096,
            jobs: 4,
            metrics: [(Metric::Bandwidth, 1e6 + f64::from(index))].into(),
            ..Record::of("fio-3.33")
        })
        .collect();
    let database = directory.path().join("results.sqlite");
    let results = lab::import::store(&database, "old", records, &["a".into()]).unwrap();
    let page = Report::of(&results).unwrap().write(directory.path()).unwrap();
    assert!(std::fs::read_to_string(page).unwrap().contains("Other programs measured this"));
}
