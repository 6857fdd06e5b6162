//! What a run came to, as text.

use eval::rate::summary::{Summary, Times};

/// Prints the outcome of a load with at most `depth_max` requests in flight per job.
pub(super) fn print(summary: &Summary, depth_max: u32) {
    let depth = || format!("none (depth {depth_max})");
    println!(
        "{} bs {} rate {} batch {} numjobs {}: {:.2} s{}",
        summary.rw,
        summary.bs,
        summary.rate.map_or_else(depth, |it| it.to_string()),
        summary.batch,
        summary.numjobs,
        summary.seconds,
        if summary.is_interrupted { ", interrupted" } else { "" },
    );
    println!("  {:.0} IOPS{}", summary.iops, held(summary));
    for (name, times) in [
        ("latency from when it was due", &summary.latency_us),
        ("latency from its submission", &summary.service_us),
        ("lateness of the generator", &summary.lateness_us),
    ] {
        println!("  {name}, us: {}", figures(times));
    }
    println!(
        "  way: {}",
        match (summary.is_straight, summary.has_registered_memory) {
            (true, true) => "straight to the kernel, files and memory registered",
            (true, false) => "straight to the kernel, files registered",
            (false, _) => "through the block layer",
        }
    );
    let submissions = &summary.submissions;
    let submitted: u64 = submissions.iter().map(|(size, count)| *size as u64 * count).sum();
    let calls: u64 = submissions.iter().map(|(_, count)| count).sum();
    if calls > 0 {
        println!("  requests per system call: {:.2}", submitted as f64 / calls as f64);
    }
    println!(
        "  CPU of this process: {:.2} us per I/O, {:.0} %",
        summary.cpu_us_per_io, summary.cpu_percent
    );
    if summary.unfinished > 0 {
        println!("  not answered at the end: {}", summary.unfinished);
    }
}

/// Returns the figures of times, in µs.
fn figures(times: &Times) -> String {
    let Times { avg, p50, p99, p999, max } = times;
    format!("avg {avg:.1}, p50 {p50:.1}, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.1}")
}

/// Returns how much of the rate was held, if there was one.
fn held(summary: &Summary) -> String {
    let Some(rate) = summary.rate else { return String::new() };
    let share = 100.0 * summary.iops / rate as f64;
    let held = if summary.is_saturated { ": the rate was NOT held" } else { "" };
    format!(", {share:.2} % of the rate{held}")
}
