//! `tsumugi union check`: what an unmounted union stores, and what is wrong with it.

use std::path::Path;
use std::process::ExitCode;

use ::union::{Checked, Severity};

/// Exit code: nothing could be checked.
const UNCHECKED: u8 = 2;

/// Checks a union's directories and prints the findings.
pub(super) fn run(upper: &Path, work: Option<&Path>, json: bool) -> ExitCode {
    match ::union::check_union(upper, work) {
        Ok(checked) if json => print_json(&checked),
        Ok(checked) => print(upper, &checked),
        Err(error) => {
            eprintln!("tsumugi: nothing was checked: {error}");
            ExitCode::from(UNCHECKED)
        }
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Damage => "damage",
        Severity::Leftover => "leftover",
    }
}

fn print_json(checked: &Checked) -> ExitCode {
    for finding in &checked.findings {
        let line = serde_json::json!({
            "severity": word(finding.severity),
            "path": finding.path.to_string_lossy(),
            "finding": finding.what,
            "advice": finding.advice,
        });
        println!("{line}");
    }
    code(checked)
}

fn print(upper: &Path, checked: &Checked) -> ExitCode {
    for finding in &checked.findings {
        let (path, what) = (finding.path.display(), &finding.what);
        println!("{}: {path}: {what}.", word(finding.severity));
        println!("    {}.", finding.advice);
    }
    let (files, bytes) = (checked.files, checked.stored_bytes);
    let found = match checked.findings.len() {
        0 => "nothing was found".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    println!(
        "{} with {}: {files} partial files, {bytes} bytes stored: {found}",
        upper.display(),
        checked.work.display()
    );
    code(checked)
}

fn code(checked: &Checked) -> ExitCode {
    if checked.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
