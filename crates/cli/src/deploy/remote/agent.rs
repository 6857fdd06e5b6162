//! `tsumugi up --agent`: carries out orders on one machine.

use super::conversation::{LINE_BYTES_MAX, Order, Reply};
use crate::commands::up::undo;
use crate::deploy::hosts::Spot;
use crate::deploy::job::JobDir;
use crate::deploy::machine::Machine;
use crate::deploy::stop::Stop;
use anyhow::{Context, bail};
use std::io::{BufRead, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Orders that may wait.
const ORDERS_MAX: usize = 8;
/// How often the stop flag is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Least time between two tellings of progress.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Carries out orders from standard input until told to finish; undoes all if that never comes.
pub(crate) fn serve(dir: &JobDir, stop: &Stop) -> ExitCode {
    let (sender, orders) = sync_channel(ORDERS_MAX);
    let is_finished = Arc::new(AtomicBool::new(false));
    let (flag, at_end) = (Arc::clone(&is_finished), stop.clone());
    std::thread::spawn(move || {
        read_orders(&sender);
        if !flag.load(Ordering::Relaxed) {
            at_end.request();
        }
    });
    let already = dir.path().exists();
    let mut machine = None;
    let result = carry_out(dir, stop, &orders, &mut machine, &is_finished);
    drop(machine);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be left to hear it.
            let _ = tell(&Reply::Failed(crate::print::words(&error)));
            if !already {
                undo(dir);
            }
            ExitCode::FAILURE
        }
    }
}

fn carry_out(
    dir: &JobDir,
    stop: &Stop,
    orders: &Receiver<Order>,
    machine: &mut Option<Machine>,
    is_finished: &AtomicBool,
) -> anyhow::Result<()> {
    loop {
        stop.check()?;
        let order = match orders.recv_timeout(LOOK_EVERY) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => bail!("the connection ended"),
        };
        if let Order::Look { peers } = &order {
            tell(&Reply::Spot(Spot::here(peers)))?;
            continue;
        }
        if let Order::Begin(plan) = order {
            if machine.is_some() {
                bail!("begun already");
            }
            *machine = Some(Machine::begin(dir, *plan, stop.clone())?);
            tell(&Reply::Done)?;
            continue;
        }
        let machine = machine.as_mut().context("not begun")?;
        match order {
            Order::Finish => {
                machine.finish()?;
                is_finished.store(true, Ordering::Relaxed);
                return tell(&Reply::Done);
            }
            order => tell(&step(machine, &order)?)?,
        }
    }
}

fn step(machine: &mut Machine, order: &Order) -> anyhow::Result<Reply> {
    let until = |within_ms: u64| Instant::now() + Duration::from_millis(within_ms);
    match order {
        Order::StartMeta { within_ms } => machine.start_meta(until(*within_ms)).map(Reply::Meta),
        Order::StartNodes { meta, within_ms } => {
            machine.start_nodes(*meta, until(*within_ms)).map(Reply::Nodes)
        }
        Order::Prepare => {
            let mut told: Option<Instant> = None;
            machine.prepare(|done, all| {
                if told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
                    told = Some(Instant::now());
                    // A lost connection shows at standard input.
                    let _ = tell(&Reply::Progress { done, all });
                }
            })?;
            Ok(Reply::Done)
        }
        Order::Look { .. } | Order::Begin(_) | Order::Finish => bail!("out of order: {order:?}"),
    }
}

fn tell(reply: &Reply) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    output.write_all(&line).and_then(|()| output.flush()).context("the connection ended")
}

fn read_orders(sender: &SyncSender<Order>) {
    let mut input = std::io::stdin().lock();
    loop {
        let mut line = String::new();
        match input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let Ok(order) = serde_json::from_str(&line) else { return };
        if sender.send(order).is_err() {
            return;
        }
    }
}
