//! Hosts that write whether or not they may.

use super::{BLOCK_BYTES, BLOCKS, Shared, block_of, host_id, is_past};
use crate::random::Random;
use block::Backing;
use reactor::time::{sleep, timeout};
use std::rc::Rc;
use std::time::Duration;
use target::LocalAccess;

/// Writes as one host until all is over.
pub(super) async fn write(shared: Rc<Shared>, host: u8, mut random: Random) {
    let open = || LocalAccess::new(&shared.admissions, &shared.namespace, host_id(host)).attach();
    let mut device = open();
    let mut number = 0;
    while !shared.is_over.get() {
        if random.chance(20) {
            device = open();
        }
        number += 1;
        let (epoch, may_write, must_fail) = {
            let model = shared.model.borrow();
            let in_force = model.in_force.get(&host).copied();
            let may_write = in_force.is_some_and(|(_, lapse)| !is_past(lapse));
            let epoch = in_force.map_or(0, |(epoch, _)| epoch);
            (epoch, may_write, !may_write && model.ordered != Some(host))
        };
        let at = random.below(BLOCKS as u64) * BLOCK_BYTES as u64;
        let write = device.write(at, block_of((host, epoch, number)).into());
        // Some writes are given up while they are under way. The device carries them out.
        let patience = Duration::from_millis(if random.chance(20) { 1 } else { 10_000 });
        let result = timeout(patience, write).await;
        if must_fail && matches!(result, Ok(Ok(()))) {
            let text = format!("host {host} writes without an admission, after epoch {epoch}");
            shared.violation(text);
        }
        let most = if may_write { 5_000 } else { 20_000 };
        sleep(Duration::from_micros(random.between(1, most))).await;
    }
}
