//! Goal: the dwords of the reservation commands are those of the specification, and reserved values
//! are refused.
#![allow(clippy::unwrap_used)]

use nvme::command::{
    AcquireAction, RegisterAction, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport,
};
use nvme::reservation::ReservationType;
use nvme::{Nsid, U32};

#[test]
fn commands_have_their_dwords() {
    let register = ReservationRegister {
        action: RegisterAction::Replace,
        ignores_key: true,
        persist: Some(true),
    };
    let sqe = register.encode(Nsid(1));
    assert_eq!((sqe.opc, sqe.cdw10.get()), (0x0d, 0xc000_000a));
    assert_eq!(ReservationRegister::decode(&sqe).unwrap(), register);
    let acquire = ReservationAcquire {
        action: AcquireAction::PreemptAndAbort,
        kind: ReservationType::WriteExclusiveRegistrantsOnly,
    };
    let sqe = acquire.encode(Nsid(1));
    assert_eq!((sqe.opc, sqe.cdw10.get()), (0x11, 0x302));
    assert_eq!(ReservationAcquire::decode(&sqe).unwrap(), acquire);
    let release = ReservationRelease::Release(ReservationType::ExclusiveAccessAllRegistrants);
    let sqe = release.encode(Nsid(1));
    assert_eq!((sqe.opc, sqe.cdw10.get()), (0x15, 0x600));
    assert_eq!(ReservationRelease::decode(&sqe).unwrap(), release);
    let report = ReservationReport { dwords: 32, is_extended: true };
    let sqe = report.encode(Nsid(1)).unwrap();
    assert_eq!((sqe.opc, sqe.cdw10.get(), sqe.cdw11.get()), (0x0e, 31, 1));
    assert_eq!(ReservationReport::decode(&sqe), report);
    assert!(ReservationReport { dwords: 0, is_extended: true }.encode(Nsid(1)).is_err());
}

#[test]
fn reserved_values_are_refused() {
    let mut sqe = ReservationRelease::Clear.encode(Nsid(1));
    for wrong in [3, 7, 1 << 30] {
        sqe.cdw10 = U32::new(wrong);
        assert!(ReservationRegister::decode(&sqe).is_err(), "{wrong:#x}");
    }
    for wrong in [0, 0x700, 0xff00, 0x103, 0x108] {
        sqe.cdw10 = U32::new(wrong);
        assert!(ReservationAcquire::decode(&sqe).is_err(), "{wrong:#x}");
    }
    for wrong in [0, 0x700, 0x102, 0x108, 9] {
        sqe.cdw10 = U32::new(wrong);
        assert!(ReservationRelease::decode(&sqe).is_err(), "{wrong:#x}");
    }
}
