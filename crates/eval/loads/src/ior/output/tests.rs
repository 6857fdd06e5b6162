//! Forms, and the numbers in them.

use super::*;
use crate::ior::crew::Layout;
use crate::ior::phase::Answer;
use crate::ior::script::Settings;

fn parameters(compat: Compat, further: &[(&str, &str)]) -> Parameters {
    let mut settings = Settings::default();
    let base = [("blockSize", "4m"), ("transferSize", "1m"), ("segmentCount", "2")];
    for (keyword, value) in base.iter().chain(further) {
        settings.set(keyword, value).unwrap();
    }
    Parameters::new(&settings, Layout::here(2), compat).unwrap().0
}

/// 16 MiB in so many seconds, of which a tenth each for opening and closing.
fn measured(access: Access, repetition: u32, total_s: f64) -> Measured {
    let answer = Answer {
        t: [0.0, 0.1, 0.1, 0.9, 0.9, 1.0].map(|share| share * total_s),
        bytes: 8 << 20,
        calls: 8,
        ..Answer::default()
    };
    let reply = crate::ior::Reply { answers: vec![answer.clone(), answer], ..Default::default() };
    Measured::of(access, repetition, reply)
}

fn shown(compat: Compat, further: &[(&str, &str)]) -> String {
    let parameters = parameters(compat, further);
    let format = parameters.format;
    let mut output = Output::new(compat, format, "command".into());
    let mut said = output.begin(&parameters, "");
    let all = [
        measured(Access::Write, 0, 1.0),
        measured(Access::Read, 0, 0.5),
        measured(Access::Write, 1, 2.0),
        measured(Access::Read, 1, 0.5),
    ];
    for it in &all {
        said += &output.event(&parameters, &Event::Measured(it));
    }
    said += &output.event(&parameters, &Event::Removed { repetition: 1, seconds: 0.25 });
    said += &output.end(&parameters, &all, "");
    said + &output.finish()
}

fn words(text: &str, start: &str) -> Vec<String> {
    let line = text.lines().rfind(|line| line.starts_with(start)).unwrap();
    line.split_whitespace().map(str::to_string).collect()
}

/// Goal: numbers are those of IOR's formulas, operations per second those of either version, and
/// lines those that scripts look for.
#[test]
fn numbers_follow_the_formulas() {
    let old = shown(Compat::V2, &[("verbose", "2"), ("repetitions", "2")]);
    let row = words(&old, "write");
    assert_eq!(row[1..5], ["16.00", "8.00", "12.00", "4.00"]);
    // Half of the operations: 2.10.3 forgets the segments.
    assert_eq!(row[5], "8.00");
    assert_eq!(row.last().unwrap(), "EXCEL");
    assert_eq!(row[10..14], ["2", "2", "2", "0"]);
    assert!(old.contains("Max Write: 16.00 MiB/sec (16.78 MB/sec)"));
    assert!(old.contains("Max Read:  32.00 MiB/sec (33.55 MB/sec)"));
    let repetition = "write     16.00      4096       1024.00    0.100000   0.800000   0.100000   \
                      1.00       0    XXCEL";
    assert!(old.contains(repetition), "{old}");
    assert!(old.contains("\tclients            = 2 (2 per node)"));
    let quiet = shown(Compat::V2, &[]);
    assert!(!quiet.contains("XXCEL") && !quiet.contains("Op grep"));

    let new = shown(Compat::V4, &[("verbose", "1"), ("repetitions", "2")]);
    let row = words(&new, "write");
    assert_eq!(row[1..6], ["16.00", "8.00", "12.00", "4.00", "16.00"]);
    // Of a repetition, operations are by the time of transfers, not by all of it.
    let repetition = "write     16.00      20.00      0.100000    4096       1024.00    0.100000   \
                      0.800000   0.100000   1.00       0   ";
    assert!(new.contains(repetition), "{new}");
    assert!(new.contains("\nremove    -          -          -           -          -          -"));
    assert!(new.contains("Max Read:  32.00 MiB/sec") && new.contains("\nSummary of all tests:\n"));
    assert!(!shown(Compat::V4, &[]).contains("Max Read"));
}

/// Goal: CSV and JSON hold the same numbers under version 4's names, and JSON is valid also with
/// names that need escapes and with much to say.
#[test]
fn programs_can_read_it() {
    let csv = shown(Compat::V4, &[("summaryFormat", "CSV")]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 5);
    assert!(lines[0].starts_with("access,bw(MiB/s),IOPS,Latency,block(KiB)"));
    assert_eq!(
        lines[1],
        "write,16.0000,20.0000,0.1000,4096.0000,1024.0000,0.1000,0.8000,0.1000,1.0000,2,0"
    );
    let settings = [("summaryFormat", "json"), ("verbose", "3"), ("testFile", "a\"b\\c")];
    let json: serde_json::Value = serde_json::from_str(&shown(Compat::V4, &settings)).unwrap();
    let test = &json["tests"][0];
    assert_eq!(test["Results"][0]["bwMiB"], 16.0);
    assert_eq!(test["Results"][4]["access"], "remove");
    assert_eq!(test["Parameters"]["testFileName"], "a\"b\\c");
    assert_eq!(test["Options"]["tasks"], 2);
    assert_eq!(test["max"]["readMiB"], 32.0);
    assert_eq!(json["summary"][0]["bwMeanMIB"], 12.0);
    assert_eq!(json["summary"][1]["operation"], "read");
}

/// Goal: each rank's figures and ranks that stand out are told.
#[test]
fn ranks_are_told_apart() {
    let mut it = measured(Access::Write, 0, 1.0);
    let rows = rank_rows(&it);
    assert_eq!(rows.lines().count(), 2);
    assert!(rows.starts_with("write,0,1e0,8"), "{rows}");
    it.answers[1].t[3] = 9.0;
    assert!(outliers(&parameters(Compat::V4, &[]), &it).is_empty());
    let told = outliers(&parameters(Compat::V4, &[("outlierThreshold", "2")]), &it);
    assert!(told.len() == 2 && told[1].contains("task 1: write transfer took 8.900"), "{told:?}");
}
