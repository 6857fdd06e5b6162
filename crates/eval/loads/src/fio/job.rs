//! Job files.

use crate::engine::Work;
use crate::workload::Pattern;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Runs from this length on log their bandwidth by the second, for the check of steadiness; shorter ones in
/// finer intervals, in which cliffs and stalls are looked for.
const LOG_SECONDS_MIN: Duration = Duration::from_secs(5);
/// Intervals of shorter runs, and the shortest that fio reports at little cost.
const INTERVALS: u128 = 12;
const INTERVAL_MS_MIN: u128 = 100;

/// The intervals of the bandwidth log of a run this long, in milliseconds.
pub fn log_interval_ms(run: Duration) -> u64 {
    if run >= LOG_SECONDS_MIN {
        return 1000;
    }
    (run.as_millis() / INTERVALS).max(INTERVAL_MS_MIN) as u64
}

/// A job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFile {
    /// Its text.
    pub text: String,
    /// Name of the bandwidth log that it writes.
    pub log: String,
}

/// The job file of a run on this file; logs go to `scratch` (both as fio sees them).
pub fn job_file(work: &Work<'_>, file: &Path, scratch: &Path) -> JobFile {
    let load = work.workload;
    let cell = work.cell;
    // Parts are whole blocks, so that every job can do the same.
    let part = work.data.bytes / u64::from(cell.jobs);
    let part = part - part % cell.block_size;
    let mut text = String::new();
    let _ = write!(
        text,
        "; {} under {}, round {}\n\
         [global]\n\
         ioengine=libaio\n\
         direct={}\n\
         time_based=1\n\
         runtime={}ms\n\
         ramp_time={}ms\n\
         group_reporting=1\n\
         norandommap=1\n\
         randrepeat=0\n\
         randseed={}\n\
         allow_file_create=0\n\
         percentile_list=1:10:30:50:70:90:95:99:99.5:99.9:99.95:99.99:99.999\n",
        cell.id,
        work.condition,
        work.turn.round,
        u8::from(load.is_direct),
        work.time.as_millis(),
        work.ramp.as_millis(),
        work.seed,
    );
    if !load.is_direct {
        // fio would drop the file's pages at every pass over it, and measure neither cache nor disk.
        text.push_str("invalidate=0\n");
    }
    let log = "run_bw.log".to_string();
    // fio averages over half a second by itself, whatever the log asks for.
    let interval = log_interval_ms(work.time);
    let _ = write!(
        text,
        "write_bw_log={}\nlog_avg_msec={interval}\nbwavgtime={}\nper_job_logs=0\n",
        scratch.join("run").display(),
        interval.min(500)
    );
    let _ = write!(
        text,
        "\n[load]\nfilename={}\nsize={part}\noffset_increment={part}\nrw={}\nbs={}\niodepth={}\n\
         numjobs={}\n",
        escape(file),
        load.pattern().map_or("", Pattern::name),
        cell.block_size,
        cell.depth,
        cell.jobs,
    );
    JobFile { text, log }
}

/// fio takes a colon in a file name for a separator.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(':', "\\:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::read;

    /// Goal: the job says what the cell says: parts of whole blocks per job, seed, direct I/O.
    #[test]
    fn jobs_say_what_cells_say() {
        let read = read(
            "engine = \"fio\"\nfile-size = \"64MiB\"\n[[workload]]\nname = \"seq\"\nrw = \"read\"\n\
             bs = [\"3MiB\"]\njobs = [4]\nmetrics = [\"bandwidth\"]\n",
        );
        let cell = read.cell(3 << 20, 4, 1);
        let work = read.work(&cell, &[], Duration::from_secs(1));
        let job = job_file(&work, Path::new("/data/a:b"), Path::new("/scratch"));
        let lines: Vec<&str> = job.text.lines().collect();
        // 64 MiB by 4 jobs is 16 MiB, which holds five blocks of 3 MiB.
        for line in [
            "size=15728640",
            "offset_increment=15728640",
            "bs=3145728",
            "numjobs=4",
            "rw=read",
            "direct=1",
            "runtime=1000ms",
            "ramp_time=500ms",
            "filename=/data/a\\:b",
        ] {
            assert!(lines.contains(&line), "{line} is not in\n{}", job.text);
        }
        assert!(lines.contains(&format!("randseed={}", work.seed).as_str()));
        // A run of a second in tenths, longer ones in twelve parts, and from 5 s on by the second.
        assert!(lines.contains(&"log_avg_msec=100") && job.log == "run_bw.log", "{}", job.text);
        assert_eq!(log_interval_ms(Duration::from_millis(2400)), 200);
        assert_eq!(log_interval_ms(Duration::from_secs(5)), 1000);
    }
}
