//! Files of real programs are read, broken ones are refused where they are broken.
//!
//! `fio.json`, `ior-4.txt`, `ior-4.json`, `ior-2.10.3*.txt` and `ffsb.txt` were printed by the programs
//! themselves. `elbencho.csv` is written after elbencho's documentation and source (3.1).

use super::*;
use crate::analysis::no_further;
use crate::history::{Kind, Results, compare};
use crate::test_support::{TEXT, measured, plan};
use proptest::prelude::*;

const FIO: &str = include_str!("samples/fio.json");
const IOR_TEXT: &str = include_str!("samples/ior-4.txt");
const IOR_JSON: &str = include_str!("samples/ior-4.json");
const IOR_OLD: &str = include_str!("samples/ior-2.10.3.txt");
const IOR_OLD_VERBOSE: &str = include_str!("samples/ior-2.10.3-v2.txt");
const FFSB: &str = include_str!("samples/ffsb.txt");
const ELBENCHO: &str = include_str!("samples/elbencho.csv");
const ALL: [(&str, Format); 7] = [
    (FIO, Format::FioJson),
    (IOR_TEXT, Format::Ior),
    (IOR_JSON, Format::Ior),
    (IOR_OLD, Format::Ior),
    (IOR_OLD_VERBOSE, Format::Ior),
    (FFSB, Format::Ffsb),
    (ELBENCHO, Format::Elbencho),
];

fn metric(record: &Record, metric: Metric) -> f64 {
    record.metrics[&metric]
}

/// Goal: each file's format is found by its content, and each run of it has a program, a rate and a time
/// of its beginning.
#[test]
fn formats_are_found() {
    for (text, format) in ALL {
        assert_eq!(Format::detect(text), Some(format));
        let records = parse(text, format).unwrap();
        for record in &records {
            assert!(
                record.program.len() > 4 && record.started_unix_s > Some(1_200_000_000),
                "{record:?}"
            );
            assert!(record.metrics.values().all(|value| *value > 0.0), "{record:?}");
        }
    }
    for text in ["", "{}", "hello", "{\"tests\": 1}", "a,b\n1,2"] {
        assert_eq!(Format::detect(text), None, "{text}");
    }
}

/// Goal: of fio each job is a run, clones together, with what its options say; CPU time counts each job
/// once, and percentiles of several jobs are not made up.
#[test]
fn fio_is_read() {
    let records = parse(FIO, Format::FioJson).unwrap();
    let names: Vec<&str> = records.iter().map(|it| it.workload.as_str()).collect();
    assert_eq!(names, ["alone", "clones", "mixed"]);
    let [alone, clones, mixed] = &records[..] else { unreachable!() };
    assert_eq!((alone.pattern, alone.block_bytes), (Some(Pattern::Write), 65_536));
    assert_eq!((alone.jobs, alone.depth, alone.way.as_str()), (1, 4, "libaio"));
    assert!(alone.metrics.contains_key(&Metric::LatencyP99), "{alone:?}");
    let rate = metric(alone, Metric::Bandwidth) / (metric(alone, Metric::Iops) * 65_536.0);
    assert!((0.99..1.01).contains(&rate), "{rate}");
    assert_eq!((clones.pattern, clones.jobs), (Some(Pattern::RandomRead), 2));
    assert!(!clones.metrics.contains_key(&Metric::LatencyP99));
    assert_eq!(mixed.pattern, Some(Pattern::RandomMixed));
    let value: serde_json::Value = serde_json::from_str(FIO).unwrap();
    let jobs = value["jobs"].as_array().unwrap();
    let sum: f64 = jobs[1..3].iter().map(|job| job["read"]["iops"].as_f64().unwrap()).sum();
    assert!((metric(clones, Metric::Iops) - sum).abs() < 1e-6);
}

/// Goal: the same tests of IOR give the same runs in text and JSON; those of 2.10.3 one by one where they
/// are printed, else their mean.
#[test]
fn ior_is_read() {
    let text = parse(IOR_TEXT, Format::Ior).unwrap();
    let json = parse(IOR_JSON, Format::Ior).unwrap();
    assert_eq!((text.len(), json.len()), (8, 8));
    let shape = |it: &Record| {
        (it.workload.clone(), it.way.clone(), it.pattern, it.has_own_files, it.block_bytes, it.jobs)
    };
    assert_eq!(
        text.iter().map(shape).collect::<Vec<_>>(),
        json.iter().map(shape).collect::<Vec<_>>()
    );
    assert_eq!(text[0].workload, "write");
    assert_eq!((text[0].block_bytes, text[0].jobs), (65_536, 2));
    assert_eq!((text[4].workload.as_str(), text[4].has_own_files), ("write own files", Some(true)));
    assert!(text[0].program.starts_with("IOR-4"), "{}", text[0].program);
    assert!(text[0].command.contains("-f") && text[0].machine.is_some());
    let row = json[0].raw.clone();
    assert!(row.contains("\"access\":\"write\""), "{row}");
    let calls = metric(&text[0], Metric::Bandwidth) / 65_536.0;
    assert!((metric(&text[0], Metric::Iops) - calls).abs() < 1e-9);
    let each = parse(IOR_OLD_VERBOSE, Format::Ior).unwrap();
    let means = parse(IOR_OLD, Format::Ior).unwrap();
    assert_eq!((each.len(), means.len()), (8, 4));
    assert!(
        means[0].further["max_mib_per_s"] >= metric(&means[0], Metric::Bandwidth) / 1_048_576.0
    );
    assert!(each.iter().chain(&means).all(|it| it.program.contains("2.10.3")), "{each:?}");
}

/// Goal: of FFSB's total each operation is a run of all threads, with sizes as they were set.
#[test]
fn ffsb_is_read() {
    let records = parse(FFSB, Format::Ffsb).unwrap();
    let of = |name: &str| records.iter().find(|it| it.workload == name).unwrap();
    let write = of("write");
    assert_eq!((write.pattern, write.block_bytes), (Some(Pattern::RandomWrite), 4096));
    assert_eq!((write.jobs, write.has_own_files), (3, Some(false)));
    let rate = metric(write, Metric::Bandwidth) / (metric(write, Metric::Iops) * 4096.0);
    assert!((0.97..1.03).contains(&rate), "three digits: {rate}");
    assert!(!of("delete").metrics.contains_key(&Metric::Bandwidth));
    assert!(write.program.starts_with("ffsb-6.0") && write.seconds > 0.0, "{write:?}");
}

/// Goal: of elbencho phases of data and of files that are looked at or removed are runs, others are not.
#[test]
fn elbencho_is_read() {
    let records = parse(ELBENCHO, Format::Elbencho).unwrap();
    let names: Vec<&str> = records.iter().map(|it| it.workload.as_str()).collect();
    assert_eq!(names, ["night write", "night read", "night stat", "night rmfiles", "read"]);
    let write = &records[0];
    assert_eq!((write.jobs, write.block_bytes, write.has_own_files), (8, 1 << 20, Some(true)));
    assert!((metric(write, Metric::Bandwidth) - 512.0 * 1_048_576.0).abs() < 1e-6);
    assert!((metric(write, Metric::Latency) - 3870.0).abs() < 1e-9);
    assert!((metric(&records[2], Metric::StatRate) - 41_211.0).abs() < 1e-9);
    assert_eq!(records[4].pattern, Some(Pattern::RandomRead));
    assert_eq!((records[4].depth, records[4].is_direct), (16, true));
}

/// Goal: wrong units, missing columns and options, negative numbers are refused with line and field.
#[test]
fn wrong_units_are_refused() {
    for (text, format, replaced, by, field) in [
        (FIO, Format::FioJson, "\"bs\" : \"64k\"", "\"bs\" : \"64x\"", "jobs[0].job options.bs"),
        (FIO, Format::FioJson, "\"total_ios\" : 0", "\"total_ios\" : -5", "jobs[0].read.total_ios"),
        (FIO, Format::FioJson, "\"job_runtime\"", "\"runtime\"", "jobs[0].job_runtime"),
        (IOR_TEXT, Format::Ior, "bw(MiB/s)", "bw(MB/s)", "bw(MiB/s)"),
        (
            IOR_TEXT,
            Format::Ior,
            "xfersize            : 65536 bytes",
            "xfersize : 64 KB",
            "xfersize",
        ),
        (IOR_TEXT, Format::Ior, "tasks               : 2", "tasks : two", "tasks"),
        (IOR_JSON, Format::Ior, "\"bwMiB\": ", "\"bwMiB\": -", "tests[0].Results[0].bwMiB"),
        (IOR_JSON, Format::Ior, "\"bwMiB\"", "\"bwMB\"", "tests[0].Results[0].bwMiB"),
        (IOR_OLD, Format::Ior, "Mean (MiB)", "Mean (MB)", "Mean (MiB)"),
        (IOR_OLD_VERBOSE, Format::Ior, "xfer(KiB)", "xfer(KB)", "xfer(KiB)"),
        (FFSB, Format::Ffsb, "B/sec\n", "b/s\n", "Throughput"),
        (ELBENCHO, Format::Elbencho, "MiB/s [last]", "MB/s [last]", "MiB/s [last]"),
        (ELBENCHO, Format::Elbencho, ",512,", ",fast,", "IOPS [last]"),
    ] {
        assert!(text.contains(replaced), "{replaced:?} is not in the sample");
        let wrong = parse(&text.replacen(replaced, by, 1), format).unwrap_err();
        assert!(wrong.field.contains(field), "{by}: {wrong:?}");
        let line = text[..text.find(replaced).unwrap()].matches('\n').count() + 1;
        // What is missing is missed where its object begins.
        assert!((1..line + 12).contains(&wrong.line), "{by}: {line} {wrong:?}");
    }
}

/// Goal: the error of a file names it.
#[test]
fn errors_name_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut.json");
    std::fs::write(&path, &FIO[..FIO.len() / 2]).unwrap();
    let error = read(&path, None).unwrap_err().to_string();
    assert!(error.contains("cut.json:") && error.contains("JSON"), "{error}");
    std::fs::write(&path, "neither\n").unwrap();
    let error = read(&path, None).unwrap_err().to_string();
    assert!(error.contains("cut.json:1: format: is none of the formats fio-json"), "{error}");
}

proptest! {
    /// Goal: a file that ends early gives what it had or an error, and never something else.
    #[test]
    fn truncated_files_give_no_more_than_they_have(which in 0..ALL.len(), share in 0.0..1.0_f64) {
        let (text, format) = ALL[which];
        let mut end = (text.len() as f64 * share) as usize;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let whole = parse(text, format).unwrap();
        if let Ok(found) = parse(&text[..end], format) {
            let is_cut = end < text.trim_end().len();
            prop_assert!(!(is_cut && text.starts_with('{')), "half of JSON is none");
            prop_assert!(found.len() <= whole.len());
            // The last line may have been cut within a number or before its unit.
            for (found, whole) in found.iter().zip(&whole).take(found.len() - 1) {
                prop_assert_eq!(&found.metrics, &whole.metrics);
            }
        }
    }

    /// Goal: whatever stands in a file is read or refused.
    #[test]
    fn broken_files_do_no_harm(which in 0..ALL.len(), at in 0.0..1.0_f64, by in "\\PC{0,3}") {
        let (text, format) = ALL[which];
        let mut at = (text.len() as f64 * at) as usize;
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let after = text[at..].chars().next().map_or(0, char::len_utf8);
        let broken = format!("{}{by}{}", &text[..at], &text[at + after..]);
        for (_, format) in [(0, format), (1, Format::Ior), (2, Format::Elbencho)] {
            if let Ok(records) = parse(&broken, format) {
                prop_assert!(records.iter().flat_map(|it| it.metrics.values()).all(|it| it.is_finite()));
            }
        }
    }
}

/// Goal: what was imported is a result like others: reported, its repetitions rounds; more is added to it;
/// the same on another day is of the same plan; own results are not touched.
#[test]
fn imported_results_are_stored() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("results.sqlite");
    let records = parse(IOR_TEXT, Format::Ior).unwrap();
    let first = store(&database, "old", records.clone(), &["a".into()]).unwrap();
    assert!(is_imported(&first).unwrap());
    assert!(first.plan().unwrap().experiment.engine.is_imported());
    let runs = first.runs().unwrap();
    assert_eq!(runs.len(), 8);
    assert_eq!(runs.iter().map(|run| run.round).max(), Some(1));
    assert!(runs.iter().all(|run| run.is_usable() && run.command.contains("ior")));
    let hash = first.get("plan").unwrap();
    drop(first);
    let second = store(&database, "old", records.clone(), &["b".into()]).unwrap();
    assert_eq!(second.runs().unwrap().len(), 16);
    assert_eq!(second.get("conditions").unwrap().unwrap(), "a; b");
    assert_eq!(second.get("plan").unwrap(), hash);
    drop(second);
    let own = directory.path().join("own.sqlite");
    drop(Store::create(&own, &plan(TEXT, &[])).unwrap());
    let error = store(&own, "old", records, &[]).unwrap_err().to_string();
    assert!(error.contains("measured here"), "{error}");
}

/// Goal: imported and own results of the same work are set side by side, whatever they are called, with
/// a verdict that says unpaired and a note of what is not known.
#[test]
fn imported_compares_with_own() {
    let own = measured(&plan(TEXT, &[]));
    let truth = loads::synthetic::truth_bytes_per_s(4096, 4);
    let records: Vec<Record> = (0..8)
        .map(|index| Record {
            program: "fio-3.33".into(),
            workload: "theirs".into(),
            way: "libaio".into(),
            pattern: Some(Pattern::Read),
            block_bytes: 4096,
            jobs: 4,
            metrics: [(Metric::Bandwidth, truth * (2.0 + 0.01 * f64::from(index)))].into(),
            ..Record::of("fio-3.33")
        })
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let imported = store(&directory.path().join("r"), "theirs", records, &[]).unwrap();
    let (own, imported) =
        (Results::of(&own, no_further).unwrap(), Results::of(&imported, no_further).unwrap());
    let history = compare(&own, &imported, true);
    let of: Vec<&str> = history.changes.iter().map(|it| it.of.as_str()).collect();
    assert_eq!(of, ["A → libaio", "B → libaio"]);
    for change in &history.changes {
        assert_eq!(change.kind, Kind::Value);
        assert_eq!(change.said(), "different, matters (unpaired)", "{change:?}");
        assert!((change.mean - 2.0_f64.ln()).abs() < 0.1);
    }
    assert!(history.notes.iter().any(|note| note.contains("one of them is imported")));
    assert!(!history.is_paired && history.reasons.iter().any(|it| it.starts_with("engine")));
}
