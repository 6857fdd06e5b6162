//! The end of a run: all faults are repaired, all clients become idle, and every client looks at
//! everything.

use crate::cluster::Machine;
use crate::fault::Fault;
use crate::history::Actor;
use crate::operator::Operator;
use crate::worker::{BALLAST, DIRECTORIES, Shared, Worker};
use mount::Kept;
use protocol::InodeId;
use reactor::time::{now, sleep};
use std::rc::Rc;
use std::time::Duration;

/// Virtual time within which every call must end after all faults are repaired.
const QUIET_AFTER: Duration = Duration::from_mins(10);
/// Longer than anything can stay uncertain and than freed space is kept from reuse.
const SETTLED_AFTER: Duration = Duration::from_secs(130);
/// Longer than data and attributes wait for their commit.
const COMMITTED_AFTER: Duration = Duration::from_secs(5);
/// How long freed space may take until it is counted as free.
const FREED_AFTER: Duration = Duration::from_mins(2);

/// Waits for the workers. Then looks at everything from every client.
pub(crate) async fn finish(shared: &Rc<Shared>, pool: (u64, u64)) {
    let cluster = &shared.cluster;
    shared.record(|| "all faults are repaired; the workers complete their steps".to_owned());
    cluster.network.heal_all();
    cluster.machines.iter().for_each(|machine| machine.node.set_disk_pace(None));
    cluster.complete().await;
    if !workers_end(shared).await {
        return;
    }
    let is_settled = shared.plan.world.is_none() || shared.plan.has_faults();
    sleep(if is_settled { SETTLED_AFTER } else { COMMITTED_AFTER }).await;
    shared.history.borrow_mut().expire();
    shared.record(|| "every client looks at everything".to_owned());
    for index in 0..cluster.machines.len() {
        on_client(shared, index, |worker| async move { worker.look_at_everything().await }).await;
    }
    shared.check_store("when all rest");
    on_client(shared, 1, |worker| async move { worker.expect_no_locks().await }).await;
    if shared.plan.has_whole_end() {
        lose_node(shared).await;
        remove_all(shared, pool).await;
    }
    for machine in &cluster.machines {
        forget_all(shared, machine).await;
    }
}

/// Removes everything. The pool must then be as at the start.
async fn remove_all(shared: &Rc<Shared>, pool: (u64, u64)) {
    let faults = shared.plan.faults;
    if faults.has(Fault::DeviceBroken) || faults.has(Fault::DeviceFull) {
        renew_sessions(shared).await;
    }
    on_client(shared, 0, |worker| async move { worker.remove_everything().await }).await;
    if shared.plan.world.is_some() && !shared.plan.has_faults() {
        on_client(shared, 1, |worker| async move { worker.expect_room().await }).await;
    }
    let shared_again = Rc::clone(shared);
    on_client(shared, 1, |worker| async move {
        worker.expect_free(&shared_again, pool, FREED_AFTER).await;
    })
    .await;
    shared.check_store("without files");
}

/// Compares the references that a mount keeps with those of the kernel, and then lets the kernel
/// drop all. The mount must keep nothing.
async fn forget_all(shared: &Rc<Shared>, machine: &Machine) {
    let Some(kernel) = machine.kernel.borrow().clone() else { return };
    let job = async move { (kernel.references().await, kernel.unused().await) };
    let job = machine.applications.spawn(job);
    let (counted, kept) = job.await.expect("no fault kills it any more");
    if let Ok((kept, had)) = counted
        && kept != had
    {
        let name = machine.name();
        let text =
            format!("the mount of {name} keeps {kept} references for a kernel that has {had}");
        shared.history.borrow_mut().violations.push(text);
    }
    if kept != Ok(Kept { references: 1, ..Kept::default() }) {
        let text = format!("the mount of {} keeps what is forgotten: {kept:?}", machine.name());
        shared.history.borrow_mut().violations.push(text);
    }
}

/// Removes a node and brings it back. Skipped if power was lost, because other files may be lost
/// too.
async fn lose_node(shared: &Rc<Shared>) {
    if shared.plan.may_lose_data() {
        return;
    }
    let reader = 0;
    let lost = shared.cluster.machines.iter().rposition(|machine| machine.has_device);
    let Some(lost) = lost.filter(|lost| *lost != reader) else { return };
    let machine = &shared.cluster.machines[reader];
    let Some(kernel) = machine.kernel.borrow().clone() else { return };
    let actor = Actor { machine: reader, life: machine.life.get() };
    let worker = Worker::new(shared, kernel, actor, 0);
    let read_all = || async {
        let job = machine.applications.spawn(worker.readable_files());
        job.await.expect("no fault kills it any more")
    };
    Operator::new(shared).lose_node(lost, read_all).await;
    shared.check_store("when a node came back");
    on_client(shared, lost, |worker| async move { worker.look_at_everything().await }).await;
}

/// Restarts every node. Blocks of failed writes stay out of use until their session has ended.
async fn renew_sessions(shared: &Rc<Shared>) {
    for index in 0..shared.cluster.machines.len() {
        shared.kill_node(index, None);
        shared.cluster.start_node(index);
    }
    shared.cluster.all_up().await;
    sleep(SETTLED_AFTER).await;
}

async fn workers_end(shared: &Rc<Shared>) -> bool {
    let deadline = now() + QUIET_AFTER;
    let is_busy = || shared.steps.iter().flatten().any(|steps| steps.get() > 0);
    while is_busy() {
        if now() > deadline {
            let mut history = shared.history.borrow_mut();
            for (machine, worker) in shared.doing.iter().enumerate() {
                for doing in worker {
                    let doing = doing.borrow();
                    if doing.is_empty() {
                        continue;
                    }
                    history.violations.push(format!("node{machine} does not end: {doing}"));
                }
            }
            return false;
        }
        sleep(Duration::from_millis(50)).await;
    }
    true
}

/// Runs a function on a node's client, as a task of the node.
async fn on_client<F: Future<Output = ()> + 'static>(
    shared: &Rc<Shared>,
    index: usize,
    job: impl FnOnce(Worker) -> F,
) {
    let machine = &shared.cluster.machines[index];
    let kernel = machine.kernel.borrow().clone();
    let Some(kernel) = kernel else { return };
    let actor = Actor { machine: index, life: machine.life.get() };
    let worker = Worker::new(shared, kernel, actor, 0);
    let job = machine.applications.spawn(job(worker));
    if reactor::time::timeout(QUIET_AFTER, job).await.is_err() {
        let doing = shared.doing[index][0].borrow();
        let text = format!("node{index} does not end its last look: {doing}");
        shared.history.borrow_mut().violations.push(text);
    }
}

impl Worker {
    /// Lists every directory and reads every file.
    async fn look_at_everything(self) {
        for parent in self.directories() {
            for (name, _) in self.list_directory(parent).await.unwrap_or_default() {
                let Some(found) = self.lookup_again(parent, &name).await else { continue };
                if found.is_file {
                    self.read_whole(parent, &name).await;
                }
            }
        }
    }

    /// Returns the path of each file, and whether all of it can be read.
    async fn readable_files(self) -> Vec<(String, bool)> {
        let mut found = Vec::new();
        for (number, parent) in self.directories().into_iter().enumerate() {
            let directory = number.checked_sub(1).map(|number| format!("{}/", DIRECTORIES[number]));
            let directory = directory.unwrap_or_default();
            let mut names = self.list_directory(parent).await.unwrap_or_default();
            if parent == InodeId::ROOT && self.reads_ballast() {
                names.push((BALLAST.to_owned(), InodeId::ROOT));
            }
            for (name, _) in names {
                if let Some(is_readable) = self.is_readable(parent, &name).await {
                    found.push((format!("{directory}{name}"), is_readable));
                }
            }
        }
        found
    }

    /// Removes every name.
    async fn remove_everything(self) {
        for parent in self.directories() {
            for (name, _) in self.list_directory(parent).await.unwrap_or_default() {
                self.remove(parent, &name).await;
            }
        }
        if self.has_ballast() {
            self.remove(InodeId::ROOT, BALLAST).await;
        }
    }

    /// Waits until the number of used bytes is that of the start.
    async fn expect_free(self, shared: &Rc<Shared>, pool: (u64, u64), within: Duration) {
        let deadline = now() + within;
        let mut found = None;
        while now() < deadline {
            found = self.pool().await;
            if found == Some(pool) {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        let text = format!("used bytes and inodes without files: {found:?}, at the start {pool:?}");
        shared.history.borrow_mut().violations.push(text);
    }
}
