//! JSON of version 4.

use super::{Access, Test, program, record};
use crate::import::json::{Node, parse as parse_json};
use crate::import::{Record, Wrong};
use base::calendar;

/// Reads it.
pub(super) fn parse(text: &str) -> Result<Vec<Record>, Wrong> {
    let value = parse_json(text)?;
    let root = Node::root(text, &value);
    let mut base = Record::of(&program(&root.get("Version")?.shown()));
    if !base.program.to_ascii_lowercase().contains("ior") {
        base.program = format!("IOR-{}", base.program);
    }
    base.command = root.text("Command line").unwrap_or_default().trim().into();
    base.machine = root.text("Machine");
    let began = root.text("Began");
    let mut records = Vec::new();
    for test in root.list("tests")? {
        let started = test.text("StartTime").or_else(|| began.clone());
        base.started_unix_s = started.and_then(|time| calendar::parse_ctime(&time));
        let said = described(&test)?;
        for result in test.list("Results")? {
            let Some(access) = Access::of(&result.get("access")?.shown()) else { continue };
            let (rate, seconds) = (result.number("bwMiB")?, result.number("totalTime")?);
            let mut run = record(&base, &said, access, rate, seconds);
            for (name, key) in [("open_s", "openTime"), ("close_s", "closeTime")] {
                run.further.insert(name.into(), result.number(key)?);
            }
            run.raw = result.shown();
            records.push(run);
        }
    }
    Ok(records)
}

fn described(test: &Node<'_>) -> Result<Test, Wrong> {
    let (parameters, options) = (test.get("Parameters")?, test.get("Options")?);
    let tasks = options.find("tasks").is_some();
    let ranks = options.whole(if tasks { "tasks" } else { "clients" })?;
    Ok(Test {
        api: parameters.get("api")?.shown(),
        is_collective: parameters.whole("collective")? != 0,
        has_own_files: parameters.whole("filePerProc")? != 0,
        is_random: parameters.whole("randomOffset")? != 0,
        ranks: u32::try_from(ranks)
            .map_err(|_| options.wrong(format!("{ranks} ranks are too many")))?,
        transfer_bytes: parameters.whole("transferSize")?,
    })
}
