//! A program that burns a known amount of CPU time is measured right. Its own process: what children
//! used is known only for all of a process's children together.
#![allow(missing_docs, clippy::unwrap_used)]

use lab::cpu::{Meter, Service};
use rustix::time::{ClockId, clock_gettime};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

const BURN: &str = "TSUMUGI_TEST_BURN_MS";

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Burns the time that the environment asks for, once a line has come; nothing without being asked.
#[test]
fn burner() {
    let Ok(text) = std::env::var(BURN) else { return };
    let time = Duration::from_millis(text.parse().unwrap());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let end = thread_time() + time;
    while thread_time() < end {}
    println!("burnt");
    // Stays until its input ends.
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Goal: of a service that burns 300 ms and of a load that burns 200 ms and a child of whose burns as
/// much, each is found where it belongs, to a few milliseconds that starting takes; the cgroup and the
/// machine hold at least the sum, within what their samples may be wrong.
#[test]
fn known_amounts_are_found() {
    if std::env::var(BURN).is_ok() {
        return;
    }
    let burner = |ms: u64| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "burner", "--nocapture"]).env(BURN, ms.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    let mut service = burner(300).spawn().unwrap();
    let meter = Meter::new(vec![Service { name: "target".into(), pid: service.id() }], Vec::new());
    let before = meter.before();
    let (mut input, output) = (service.stdin.take().unwrap(), service.stdout.take().unwrap());
    writeln!(input, "go").unwrap();
    let mut lines = BufReader::new(output).lines();
    assert!(lines.any(|line| line.unwrap().contains("burnt")));
    let program = std::env::current_exe().unwrap();
    let run = "printf 'go\\n' | \"$1\" --exact burner --nocapture";
    let script = format!("{run} & {run}; wait");
    let done = Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(program)
        .env(BURN, "200")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(done.success());
    let spent = meter.spent(&before, &meter.after());
    drop(input);
    service.wait().unwrap();
    let near = |value: f64, known: f64| (known..known + 0.15).contains(&value);
    assert!(near(spent.services["target"], 0.3), "{spent:?}");
    assert!(near(spent.load.unwrap(), 0.4), "{spent:?}");
    if let Some(cgroup) = spent.cgroup {
        assert!(cgroup >= 0.7, "{spent:?}");
    }
    let busy = spent.busy.unwrap();
    assert!(busy.seconds + busy.error >= 0.7, "{spent:?}");
    let samples = spent.samples();
    assert!(samples["cpu_load_s"] >= 0.4 && samples.contains_key("cpu_system_error_s"));
}
