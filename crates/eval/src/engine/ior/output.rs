//! Results in IOR's own form: the summary of 2.10.3, which scripts of users search for numbers.

use super::parameters::Parameters;
use super::posix::{Access, Measured};
use super::script::Compat;
use crate::statistics::mean;
use std::fmt::Write as _;

const MIB: f64 = (1 << 20) as f64;

/// Operations per second of a repetition. 2.10.3 forgets the segments.
fn operations(parameters: &Parameters, compat: Compat, measured: &Measured) -> f64 {
    let all = parameters.transfers() as f64 * parameters.ranks as f64;
    let shown = match compat {
        Compat::V2 => all / parameters.segments as f64,
        Compat::V4 => all,
    };
    shown / measured.total_s
}

/// IOR's standard deviation, of the values themselves (divides by n).
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// The summary of a test.
pub fn summary(parameters: &Parameters, compat: Compat, measured: &[Measured]) -> String {
    let mut text = String::from("Summary:\n");
    let sharing =
        if parameters.is_file_per_process { "file-per-process" } else { "single-shared-file" };
    for (name, value) in [
        ("api", "POSIX".to_string()),
        ("test filename", parameters.files[0].display().to_string()),
        ("access", sharing.into()),
        ("clients", format!("{} (threads of one process)", parameters.ranks)),
        ("repetitions", parameters.repetitions.to_string()),
        ("xfersize", crate::units::bytes(parameters.transfer_bytes)),
        ("blocksize", crate::units::bytes(parameters.block_bytes)),
        ("aggregate filesize", crate::units::bytes(parameters.aggregate_bytes())),
    ] {
        let _ = writeln!(text, "\t{name:<18} = {value}");
    }
    text.push_str(
        "\nOperation  Max (MiB)  Min (MiB)  Mean (MiB)   Std Dev  Max (OPs)  Min (OPs)  Mean (OPs)   \
         Std Dev  Mean (s)\n",
    );
    for (access, name) in [(Access::Write, "write"), (Access::Read, "read")] {
        let phases: Vec<&Measured> = measured.iter().filter(|it| it.access == access).collect();
        if phases.is_empty() {
            continue;
        }
        let rates: Vec<f64> = phases.iter().map(|it| it.bandwidth() / MIB).collect();
        let calls: Vec<f64> = phases.iter().map(|it| operations(parameters, compat, it)).collect();
        let times: Vec<f64> = phases.iter().map(|it| it.total_s).collect();
        let _ = write!(text, "{name:<10}");
        for values in [&rates, &calls] {
            let max = values.iter().copied().fold(f64::MIN, f64::max);
            let min = values.iter().copied().fold(f64::MAX, f64::min);
            let _ = write!(
                text,
                " {max:10.2} {min:10.2} {:11.2} {:9.2}",
                mean(values),
                deviation(values)
            );
        }
        let _ = writeln!(text, " {:9.5}   EXCEL", mean(&times));
    }
    for (access, name) in [(Access::Write, "Write"), (Access::Read, "Read")] {
        let rates = measured.iter().filter(|it| it.access == access).map(Measured::bandwidth);
        if let Some(max) = rates.reduce(f64::max) {
            let _ =
                writeln!(text, "\nMax {name}: {:.2} MiB/sec ({:.2} MB/sec)", max / MIB, max / 1e6);
        }
    }
    let errors: u64 = measured.iter().map(|it| it.errors).sum();
    if errors > 0 {
        let _ = writeln!(text, "\n{errors} words of data are not what was written");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::script::Settings;
    use super::*;

    /// Goal: numbers are those of IOR's formulas, operations per second those of either version.
    #[test]
    fn numbers_follow_the_formulas() {
        let mut settings = Settings::default();
        for (keyword, value) in [("blockSize", "4m"), ("transferSize", "1m"), ("segmentCount", "2")]
        {
            settings.set(keyword, value).unwrap();
        }
        let parameters = Parameters::new(&settings, 2, Compat::V2).unwrap().0;
        let measured = |repetition, total_s| Measured {
            access: Access::Write,
            repetition,
            bytes: parameters.aggregate_bytes(),
            open_s: 0.0,
            transfer_s: total_s,
            close_s: 0.0,
            total_s,
            errors: 0,
        };
        // 16 MiB in 1 s and in 2 s.
        let measured = [measured(0, 1.0), measured(1, 2.0)];
        let old = summary(&parameters, Compat::V2, &measured);
        let row = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("write")).unwrap().to_string();
            line.split_whitespace().map(str::to_string).collect::<Vec<_>>()
        };
        assert_eq!(row(&old)[1..5], ["16.00", "8.00", "12.00", "4.00"]);
        assert_eq!(row(&old)[5], "8.00");
        assert_eq!(row(&summary(&parameters, Compat::V4, &measured))[5], "16.00");
        assert!(old.contains("Max Write: 16.00 MiB/sec (16.78 MB/sec)"));
        assert!(!old.contains("Max Read"));
    }
}
