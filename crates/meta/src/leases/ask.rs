//! Clearing the way for a call: asking holders, barring inodes, taking answers.

use super::{
    Ask, AskId, Asked, Bar, Busy, CallId, Clearance, Demand, INVALIDATE_HOLDERS_MAX, Leases, Open,
    Waiting,
};
use protocol::client::Name;
use protocol::lease::Recall;
use protocol::{InodeId, Rights, SessionId};
use smallvec::SmallVec;

/// What is recalled by one message: never READ together with rights that wait for commits. What waits for
/// a report of locks waits for neither.
const CLASSES: [Rights; 3] =
    [Rights::READ, Rights(Rights::WRITE.0 | Rights::SIZE.0 | Rights::SOLE.0), Rights::LOCKS];

impl Leases {
    /// Whether `call` of `session` may be executed now; else everything is asked and barred that
    /// it needs. `wants` are the WRITE and SIZE rights that it is to be granted: it waits while an
    /// earlier call of another session bars them.
    pub fn clear(
        &mut self,
        call: CallId,
        session: SessionId,
        demands: &[Demand],
        wants: &[(InodeId, Rights)],
    ) -> Clearance {
        let mut is_clear = true;
        let only = if reactor::mutant!("first-conflict-only") { 1 } else { usize::MAX };
        for demand in demands.iter().take(only) {
            is_clear &= match demand {
                Demand::Give(inode, rights) => self.demand_rights(call, session, *inode, *rights),
                Demand::Forget(inode, names) => self.demand_forget(call, session, *inode, names),
                Demand::Tell(inode) => self.demand_telling(call, session, *inode),
            };
        }
        for (inode, rights) in wants {
            is_clear &= self.wait_for_bars(call, session, *inode, *rights);
        }
        if is_clear {
            return Clearance::Clear;
        }
        // Barred from the first recall on, also where nobody holds anything yet.
        for demand in demands.iter().filter(|_| !reactor::mutant!("nothing-barred")) {
            self.bar(call, session, demand.inode(), demand.bars());
        }
        Clearance::Wait
    }

    /// The call was executed or given up: others may be granted what it barred.
    pub fn done(&mut self, call: CallId) {
        let Some(waiting) = self.waiting.remove(&call) else { return };
        for inode in waiting.inodes {
            let Some(busy) = self.busy.get_mut(&inode) else { continue };
            busy.bars.retain(|bar| bar.call != call);
            busy.acquirers.retain(|acquirer| *acquirer != call);
            self.ready.append(&mut busy.acquirers);
            assert!(
                busy.bars.iter().all(|bar| self.waiting.contains_key(&bar.call)),
                "{inode} is barred by a call that is done: {busy:?}"
            );
            for ask in &busy.asks {
                if let Some(open) = self.asks.get_mut(ask) {
                    open.calls.retain(|waiter| *waiter != call);
                }
            }
            self.tidy(inode);
        }
    }

    /// Forgets that something goes on at an inode, if nothing does.
    fn tidy(&mut self, inode: InodeId) {
        let is_idle =
            |busy: &Busy| busy.bars.is_empty() && busy.asks.is_empty() && busy.acquirers.is_empty();
        if self.busy.get(&inode).is_some_and(is_idle) {
            self.busy.remove(&inode);
        }
    }

    /// The state of a call that has to wait, at `inode` among others.
    fn waiting(&mut self, call: CallId, inode: InodeId) -> &mut Waiting {
        let next_order = &mut self.next_order;
        let waiting = self.waiting.entry(call).or_insert_with(|| {
            *next_order += 1;
            let order = *next_order;
            Waiting { order, inodes: SmallVec::new(), missing: 0, forgotten: Vec::new() }
        });
        if !waiting.inodes.contains(&inode) {
            waiting.inodes.push(inode);
        }
        waiting
    }

    fn bar(&mut self, call: CallId, session: SessionId, inode: InodeId, rights: Rights) {
        let order = self.waiting(call, inode).order;
        let bars = &mut self.busy.entry(inode).or_default().bars;
        match bars.iter_mut().find(|bar| bar.call == call) {
            Some(bar) => {
                assert!(
                    bar.session == session && bar.order == order,
                    "{call:?} of {session} bars {inode} as another's: {bar:?}"
                );
                bar.rights |= rights;
            }
            None => bars.push(Bar { call, session, rights, order }),
        }
    }

    /// Whether another session's call bars some of `rights`.
    pub(super) fn is_barred(&self, session: SessionId, inode: InodeId, rights: Rights) -> bool {
        self.busy.get(&inode).is_some_and(|busy| {
            busy.bars.iter().any(|bar| bar.session != session && bar.rights.intersects(rights))
        })
    }

    /// Whether no earlier bar is in the way of acquiring `rights`; else the call is woken when one
    /// is lifted.
    fn wait_for_bars(
        &mut self,
        call: CallId,
        session: SessionId,
        inode: InodeId,
        rights: Rights,
    ) -> bool {
        let order = self.waiting.get(&call).map_or(u64::MAX, |waiting| waiting.order);
        let is_free = !self.busy.get(&inode).is_some_and(|busy| {
            let mut bars = busy.bars.iter();
            bars.any(|b| b.session != session && b.order < order && b.rights.intersects(rights))
        });
        if !is_free {
            self.waiting(call, inode);
            let acquirers = &mut self.busy.entry(inode).or_default().acquirers;
            if !acquirers.contains(&call) {
                acquirers.push(call);
            }
        }
        is_free
    }

    /// Whether nobody else holds `rights`; else they are recalled.
    fn demand_rights(
        &mut self,
        call: CallId,
        session: SessionId,
        inode: InodeId,
        rights: Rights,
    ) -> bool {
        let Some(holders) = self.holders.get(&inode) else { return true };
        let others: SmallVec<[(SessionId, Rights); 4]> = holders
            .iter()
            .filter(|h| h.session != session || reactor::mutant!("own-rights-recalled"))
            .filter(|h| h.rights.intersects(rights - Rights::OPEN))
            .map(|h| (h.session, h.rights & rights))
            .collect();
        for (holder, held) in &others {
            self.recall_by_class(call, *holder, inode, *held);
        }
        others.is_empty()
    }

    /// Whether the call's session is known to have the inode open, or holds nothing by which it may
    /// have opened it untold; else that is recalled.
    fn demand_telling(&mut self, call: CallId, session: SessionId, inode: InodeId) -> bool {
        let held = self.rights(session, inode);
        if held.is_empty() || held.contains(Rights::OPEN) {
            return true;
        }
        self.recall_by_class(call, session, inode, held);
        false
    }

    fn recall_by_class(&mut self, call: CallId, holder: SessionId, inode: InodeId, rights: Rights) {
        for class in CLASSES {
            if rights.intersects(class) {
                self.recall(Some(call), holder, inode, rights & class);
            }
        }
    }

    /// Recalls rights of one class, unless that is under way already, for a call that then waits.
    pub(super) fn recall(
        &mut self,
        call: Option<CallId>,
        holder: SessionId,
        inode: InodeId,
        rights: Rights,
    ) {
        let mut missing = rights;
        let under_way = self.busy.get(&inode).map(|busy| busy.asks.clone()).unwrap_or_default();
        for id in under_way {
            let Some(open) = self.asks.get(&id) else { continue };
            if open.session == holder && !open.is_forget && open.rights.intersects(rights) {
                missing = missing - open.rights;
                self.join(call, id);
            }
        }
        if missing.is_empty() {
            return;
        }
        let stamp = self.next_stamp();
        let what = Asked::Recall(Recall { inode, rights: missing, stamp });
        self.ask(call, holder, what);
    }

    /// Whether every other holder of READ has forgotten the names; else they are asked to.
    fn demand_forget(
        &mut self,
        call: CallId,
        session: SessionId,
        inode: InodeId,
        names: &[Name],
    ) -> bool {
        let Some(holders) = self.holders.get(&inode) else { return true };
        let readers: SmallVec<[SessionId; 4]> = holders
            .iter()
            .filter(|h| h.session != session && h.rights.contains(Rights::READ))
            .map(|h| h.session)
            .collect();
        if readers.len() > INVALIDATE_HOLDERS_MAX {
            return self.demand_rights(call, session, inode, Rights::READ);
        }
        for reader in readers {
            let forgotten = self.waiting.get(&call).map_or(&[][..], |w| &w.forgotten);
            let is_new = |name: &&Name| {
                !forgotten.iter().any(|(s, i, n)| *s == reader && *i == inode && n == *name)
            };
            let new: Vec<Name> = names.iter().filter(is_new).cloned().collect();
            if new.is_empty() {
                continue;
            }
            let entries = new.iter().map(|name| (reader, inode, name.clone()));
            self.waiting(call, inode).forgotten.extend(entries);
            let stamp = self.next_stamp();
            self.ask(Some(call), reader, Asked::Forget { inode, names: new, stamp });
        }
        let is_waiting = self.waiting.get(&call).is_some_and(|waiting| waiting.missing > 0);
        !is_waiting || reactor::mutant!("invalidation-not-awaited")
    }

    fn ask(&mut self, call: Option<CallId>, session: SessionId, what: Asked) {
        self.next_ask += 1;
        let id = AskId(self.next_ask);
        let (inode, rights, stamp, is_forget) = match &what {
            Asked::Recall(recall) => (recall.inode, recall.rights, recall.stamp, false),
            Asked::Forget { inode, stamp, .. } => (*inode, Rights::NONE, *stamp, true),
        };
        // What waits for commits is never recalled together with what commits wait for.
        let is_mixed = rights.contains(Rights::READ) && rights != Rights::READ;
        assert!(!is_mixed && (is_forget || !rights.is_empty()), "{session} is asked for {what:?}");
        assert!(
            is_forget || self.rights(session, inode).contains(rights),
            "{session} is asked for {rights:?} over {inode}, and holds {:?}",
            self.rights(session, inode)
        );
        let is_eviction = call.is_none();
        let calls = Vec::new();
        let open = Open { session, inode, rights, is_forget, stamp, is_eviction, calls };
        self.asks.insert(id, open);
        self.busy.entry(inode).or_default().asks.push(id);
        self.join(call, id);
        self.outbox.push(Ask { id, session, what });
    }

    /// Lets a call wait for an answer.
    fn join(&mut self, call: Option<CallId>, id: AskId) {
        let (Some(call), Some(open)) = (call, self.asks.get_mut(&id)) else { return };
        if !open.calls.contains(&call) {
            open.calls.push(call);
            let inode = open.inode;
            self.waiting(call, inode).missing += 1;
        }
    }

    /// A session whose answer a call waits for, if it waits for one.
    pub fn asked_for(&self, call: CallId) -> Option<SessionId> {
        self.asks.values().find(|open| open.calls.contains(&call)).map(|open| open.session)
    }

    /// The inode that an ask is about, while it is open.
    pub fn asked_of(&self, id: AskId) -> Option<InodeId> {
        self.asks.get(&id).map(|open| open.inode)
    }

    /// An ask was answered; of a recall, `kept` says what the session keeps. Answers the inode if
    /// the session had it open and says that it has not any more.
    pub fn answered(&mut self, id: AskId, kept: Rights) -> Option<InodeId> {
        let open = self.close_ask(id)?;
        if open.is_forget {
            return None;
        }
        if open.is_eviction
            && let Some(held) = self.sessions.get_mut(&open.session)
        {
            let (session, inode) = (open.session, open.inode);
            assert!(held.evictions > 0, "{session} gives {inode} back to make room, unasked");
            held.evictions -= 1;
        }
        let had_open = self.rights(open.session, open.inode).contains(Rights::OPEN);
        self.take_away(&open, kept);
        let has_open = self.rights(open.session, open.inode).contains(Rights::OPEN);
        (had_open && !has_open).then_some(open.inode)
    }

    /// Applies the answer to a recall.
    fn take_away(&mut self, open: &Open, kept: Rights) {
        let Some(holders) = self.holders.get_mut(&open.inode) else { return };
        let Some(holder) = holders.iter_mut().find(|h| h.session == open.session) else { return };
        assert!(
            holder.stamp != open.stamp,
            "a grant over {} and a recall have one stamp: {holder:?}, {open:?}",
            open.inode
        );
        holder.rights = holder.rights - open.rights;
        // A grant after the recall stands: the client answered before it knew of that.
        if holder.stamp < open.stamp || reactor::mutant!("recall-takes-newer-open") {
            holder.rights = (holder.rights - Rights::OPEN) | (kept & Rights::OPEN);
        } else {
            holder.rights |= kept & Rights::OPEN;
        }
        assert!(
            !holder.rights.intersects(open.rights - Rights::OPEN),
            "{holder:?} keeps over {} what it gave back: {open:?}",
            open.inode
        );
        self.note_sole(open.session, open.inode);
        self.drop_if_empty(open.session, open.inode);
    }

    /// Removes an ask and makes ready who waited for it alone.
    pub(super) fn close_ask(&mut self, id: AskId) -> Option<Open> {
        let open = self.asks.remove(&id)?;
        if let Some(busy) = self.busy.get_mut(&open.inode) {
            let before = busy.asks.len();
            busy.asks.retain(|other| *other != id);
            assert!(
                busy.asks.len() + 1 == before,
                "{id:?} about {} was noted {before} times, now {}",
                open.inode,
                busy.asks.len()
            );
        }
        for call in &open.calls {
            if let Some(waiting) = self.waiting.get_mut(call) {
                assert!(
                    waiting.missing > 0,
                    "{call:?} waits for nothing, and for an answer about {}: {waiting:?}",
                    open.inode
                );
                waiting.missing -= 1;
                if waiting.missing == 0 {
                    self.ready.push(*call);
                }
            }
        }
        self.tidy(open.inode);
        Some(open)
    }
}
