//! Orders of the metadata service: it admits, renews and fences.

use super::{Admission, HOSTS, Model, Shared, host_id, is_past};
use crate::random::Random;
use reactor::time::{boot_time, sleep};
use std::collections::BTreeSet;
use std::time::Duration;
use target::{Moment, Refusal};

/// Orders of a run.
const ORDERS: u64 = 60;

impl Model {
    /// Moves admissions that have lapsed out of those in force.
    fn sweep(&mut self) {
        let lapsed: Vec<u8> =
            self.in_force.iter().filter(|(_, it)| is_past(it.1)).map(|(host, _)| *host).collect();
        for host in lapsed {
            if let Some((epoch, _)) = self.in_force.remove(&host) {
                self.lapsed.insert((host, epoch));
            }
        }
    }
}

/// Gives orders.
pub(super) async fn give(shared: &Shared, mut random: Random) {
    let mut epoch = 0;
    for _ in 0..ORDERS {
        sleep(Duration::from_micros(random.between(1, 40_000))).await;
        let host = random.between(1, HOSTS.into()) as u8;
        let lapse = boot_time() + random.between(1_000, 150_000_000);
        match random.below(10) {
            0..4 => {
                epoch += 1;
                admit(shared, host, epoch, lapse).await;
            }
            4 => admit_late(shared, host, epoch + 1).await,
            5 => admit_fenced(shared, host, lapse).await,
            6 | 7 => renew(shared, lapse),
            _ => fence(shared, host).await,
        }
        shared.look(BTreeSet::new()).await;
    }
}

/// Admits a host. Afterwards all writes under admissions that had lapsed have ended.
async fn admit(shared: &Shared, host: u8, epoch: u64, lapse: u64) {
    let lapsed = {
        let mut model = shared.model.borrow_mut();
        model.sweep();
        model.ordered = Some(host);
        std::mem::take(&mut model.lapsed)
    };
    let admitted = shared.admissions.admit(host_id(host), epoch, Moment::from_ns(lapse)).await;
    {
        let mut model = shared.model.borrow_mut();
        model.ordered = None;
        match admitted {
            Ok(()) => _ = model.in_force.insert(host, (epoch, lapse)),
            Err(Refusal::Lapsed) if is_past(lapse) => {}
            Err(refusal) => shared.violation(format!("host {host} is not admitted: {refusal}")),
        }
    }
    shared.look(lapsed).await;
}

/// An order that comes after its lapse admits no host.
async fn admit_late(shared: &Shared, host: u8, epoch: u64) {
    let past = Moment::from_ns(boot_time());
    shared.model.borrow_mut().ordered = Some(host);
    let admitted = shared.admissions.admit(host_id(host), epoch, past).await;
    shared.model.borrow_mut().ordered = None;
    if admitted != Err(Refusal::Lapsed) {
        shared.violation(format!("a late order to admit host {host}: {admitted:?}"));
    }
}

/// A host is not admitted again under an epoch in which it was fenced.
async fn admit_fenced(shared: &Shared, host: u8, lapse: u64) {
    let fenced = shared.model.borrow().fenced.get(&host).copied();
    let Some(epoch) = fenced else { return };
    shared.model.borrow_mut().ordered = Some(host);
    let admitted = shared.admissions.admit(host_id(host), epoch, Moment::from_ns(lapse)).await;
    shared.model.borrow_mut().ordered = None;
    if admitted.is_ok() {
        shared.violation(format!("host {host} is admitted again in epoch {epoch}"));
    }
}

/// Extends all admissions in force, and brings none back that has lapsed.
fn renew(shared: &Shared, lapse: u64) {
    let mut model = shared.model.borrow_mut();
    model.sweep();
    let renewed = shared.admissions.renew(Moment::from_ns(lapse));
    if renewed != model.in_force.len() {
        let known = &model.in_force;
        shared.violation(format!("{renewed} admissions are renewed, and in force are {known:?}"));
    }
    for (_, known) in model.in_force.values_mut() {
        *known = lapse.max(*known);
    }
}

/// Fences a host. Afterwards all its writes have ended.
async fn fence(shared: &Shared, host: u8) {
    let (drained, ended) = {
        let mut model = shared.model.borrow_mut();
        let last = model.in_force.get(&host).map(|(epoch, _)| *epoch);
        let is_of_host = |it: &&Admission| it.0 == host;
        let mut ended: BTreeSet<Admission> =
            model.lapsed.iter().filter(is_of_host).copied().collect();
        ended.extend(last.map(|epoch| (host, epoch)));
        let Some((_, epoch)) = ended.last().copied() else { return };
        model.in_force.remove(&host);
        model.lapsed.retain(|it| it.0 != host);
        model.fenced.insert(host, epoch);
        (shared.admissions.fence(host_id(host), epoch), ended)
    };
    drained.await;
    shared.look(ended).await;
}
