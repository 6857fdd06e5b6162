//! Reservation notifications (base 8.1.22.1): selects the controllers that report them.

use super::Target;
use crate::reservation::Notice;
use crate::subsystem::Subsystem;
use nvme::Nsid;
use std::sync::Arc;

impl Target {
    /// Makes the controllers of the affected hosts report changes of a namespace's reservations.
    pub(crate) fn note_reservations(
        &self,
        subsystem: &Arc<Subsystem>,
        nsid: Nsid,
        notices: &[Notice],
    ) {
        if notices.is_empty() {
            return;
        }
        for controller in self.registry().controllers.values() {
            if !Arc::ptr_eq(controller.subsystem(), subsystem) {
                continue;
            }
            for &(host, notice) in notices {
                if host == controller.host()
                    && controller.namespace(nsid).is_some()
                    && controller.notices().add(nsid, notice)
                {
                    controller.look_for_events();
                }
            }
        }
    }
}
