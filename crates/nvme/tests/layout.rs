//! Goal: every field has the offset that the specification gives.
//!
//! Sizes are asserted where the structures are declared. That would not detect two fields that
//! swapped places. The offsets are those of the specifications' figures.

use core::mem::offset_of;

macro_rules! assert_offsets {
    ($type:ty: $($field:ident = $offset:literal),* $(,)?) => {
        $(assert_eq!(offset_of!($type, $field), $offset, stringify!($type, $field));)*
    };
}

#[test]
fn queue_entries() {
    // Goal: submission and completion queue entries, SGL descriptors, and the ranges of DSM and Copy.
    assert_offsets!(nvme::SubmissionQueueEntry: opc = 0, flags = 1, cid = 2, nsid = 4, cdw2 = 8,
        cdw3 = 12, mptr = 16, sgl1 = 24, cdw10 = 40, cdw11 = 44, cdw12 = 48, cdw15 = 60);
    assert_offsets!(nvme::CompletionQueueEntry: result = 0, sqhd = 8, sqid = 10, cid = 12, sf = 14);
    assert_offsets!(nvme::SglDescriptor: addr = 0, length = 8, id = 15);
    assert_offsets!(nvme::command::DsmRange: cattr = 0, nlb = 4, slba = 8);
    assert_offsets!(nvme::command::CopyRange: slba = 8, nlb = 16, eilbrt = 24, elbat = 28,
        elbatm = 30);
    assert_offsets!(nvme::fabrics::ConnectData: hostid = 0, cntlid = 16, subnqn = 256,
        hostnqn = 512, rsvd768 = 768);
}

#[test]
fn identify_controller() {
    // Goal: base figure 313.
    assert_offsets!(nvme::identify::IdentifyController: vid = 0, ssvid = 2, sn = 4, mn = 24,
        fr = 64, rab = 72, ieee = 73, cmic = 76, mdts = 77, cntlid = 78, ver = 80, rtd3r = 84,
        rtd3e = 88, oaes = 92, ctratt = 96, rrls = 100, bpcap = 102, nssl = 104, plsi = 110,
        cntrltype = 111, fguid = 112, crdt1 = 128, crdt3 = 132, crcap = 134, nvmsr = 253, mec = 255,
        oacs = 256, acl = 258, aerl = 259, frmw = 260, lpa = 261, elpe = 262, npss = 263,
        avscc = 264, apsta = 265, wctemp = 266, cctemp = 268, mtfa = 270, hmpre = 272, hmmin = 276,
        tnvmcap = 280, unvmcap = 296, rpmbs = 312, edstt = 316, dsto = 318, fwug = 319, kas = 320,
        hctma = 322, mntmt = 324, mxtmt = 326, sanicap = 328, hmminds = 332, hmmaxd = 336,
        nsetidmax = 338, endgidmax = 340, anatt = 342, anacap = 343, anagrpmax = 344,
        nanagrpid = 348, pels = 352, domainid = 356, kpioc = 358, mptfawr = 360, megcap = 368,
        tmpthha = 384, cqt = 386, sqes = 512, cqes = 513, maxcmd = 514, nn = 516, oncs = 520,
        fuses = 522, fna = 524, vwc = 525, awun = 526, awupf = 528, icsvscc = 530, nwpc = 531,
        acwu = 532, cdfs = 534, sgls = 536, mnan = 540, maxdna = 544, maxcna = 560, subnqn = 768,
        ioccsz = 1792, iorcsz = 1796, icdoff = 1800, fcatt = 1802, msdbd = 1803, ofcs = 1804,
        dctype = 1806, psd = 2048, vs = 3072);
    assert_offsets!(nvme::identify::PowerState: mp = 0, flags = 3, enlat = 4, exlat = 8, rrt = 12,
        idlp = 16, ips = 18, actp = 20, apws = 22);
    assert_offsets!(nvme::identify::IdentifyControllerNvm: vsl = 0, wzsl = 1, wusl = 2, dmrl = 3,
        dmrsl = 4, dmsl = 8);
}

#[test]
fn identify_namespace() {
    // Goal: NVM figures 114 and 118, base figure 320.
    assert_offsets!(nvme::identify::IdentifyNamespace: nsze = 0, ncap = 8, nuse = 16, nsfeat = 24,
        nlbaf = 25, flbas = 26, mc = 27, dpc = 28, dps = 29, nmic = 30, rescap = 31, fpi = 32,
        dlfeat = 33, nawun = 34, nawupf = 36, nacwu = 38, nabsn = 40, nabo = 42, nabspf = 44,
        noiob = 46, nvmcap = 48, npwg = 64, npwa = 66, npdg = 68, npda = 70, nows = 72, mssrl = 74,
        mcl = 76, msrc = 80, kpios = 81, nulbaf = 82, kpiodaag = 84, anagrpid = 92, nsattr = 99,
        nvmsetid = 100, endgid = 102, nguid = 104, eui64 = 120, lbaf = 128, vs = 384);
    assert_offsets!(nvme::identify::LbaFormat: ms = 0, lbads = 2, rp = 3);
    assert_offsets!(nvme::identify::IdentifyNamespaceIndependent: nsfeat = 0, nmic = 1, rescap = 2,
        fpi = 3, anagrpid = 4, nsattr = 8, nvmsetid = 10, endgid = 12, nstat = 14);
    assert_offsets!(nvme::identify::IdentifyNamespaceNvm: lbstm = 0, pic = 8, pifa = 9, elbaf = 12,
        rsvd268 = 268);
}

#[test]
fn log_pages() {
    // Goal: base figures 204 to 218, 294 and 295.
    assert_offsets!(nvme::log_page::ErrorEntry: ecnt = 0, sqid = 8, cid = 10, sf = 12, pel = 14,
        lba = 16, nsid = 24, vsia = 28, trtype = 29, csi = 30, opc = 31, csinfo = 32, ttsi = 40,
        lpver = 63);
    assert_offsets!(nvme::log_page::SmartHealth: cw = 0, ctemp = 1, avsp = 3, avspt = 4, pused = 5,
        egcws = 6, dur = 32, duw = 48, hrc = 64, hwc = 80, cbt = 96, pwrc = 112, poh = 128,
        upl = 144, mdie = 160, neile = 176, wctt = 192, cctt = 196, tsen = 200, tmttc1 = 216,
        tttmt2 = 228);
    assert_offsets!(nvme::log_page::FirmwareSlots: afi = 0, frs = 8);
    assert_offsets!(nvme::log_page::CommandEffects: acs = 0, iocs = 1024);
    assert_offsets!(nvme::log_page::AnaHeader: chgcnt = 0, ngrps = 8);
    assert_offsets!(nvme::log_page::AnaGroup: agid = 0, nnsid = 4, chgcnt = 8, state = 16);
    assert_offsets!(nvme::log_page::DiscoveryHeader: genctr = 0, numrec = 8, recfmt = 16);
    assert_offsets!(nvme::log_page::DiscoveryEntry: trtype = 0, adrfam = 1, subtype = 2, treq = 3,
        portid = 4, cntlid = 6, asqsz = 8, eflags = 10, trsvcid = 32, subnqn = 256, traddr = 512,
        tsas = 768);
}

#[test]
fn pdus() {
    // Goal: TCP figures 17 to 31.
    use nvme::tcp::{C2hData, CapsuleCmd, CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, R2t};
    assert_offsets!(CommonHeader: pdu_type = 0, flags = 1, hlen = 2, pdo = 3, plen = 4);
    assert_offsets!(IcReq: ch = 0, pfv = 8, hpda = 10, dgst = 11, maxr2t = 12);
    assert_offsets!(IcResp: ch = 0, pfv = 8, cpda = 10, dgst = 11, maxh2cdata = 12);
    assert_offsets!(nvme::tcp::TermReq: ch = 0, fes = 8, fei = 10, rsvd14 = 14);
    assert_offsets!(CapsuleCmd: ch = 0, sqe = 8);
    assert_offsets!(CapsuleResp: ch = 0, cqe = 8);
    assert_offsets!(H2cData: ch = 0, cccid = 8, ttag = 10, datao = 12, datal = 16);
    assert_offsets!(C2hData: ch = 0, cccid = 8, datao = 12, datal = 16);
    assert_offsets!(R2t: ch = 0, cccid = 8, ttag = 10, r2to = 12, r2tl = 16);
}

#[test]
fn reservations() {
    // Goal: base figures 265, 460, 465, 473 and 475.
    assert_offsets!(nvme::reservation::ReservationStatus: generation = 0, rtype = 4, regctl = 5,
        ptpls = 9, rsvd10 = 10);
    assert_offsets!(nvme::reservation::RegisteredController: cntlid = 0, rcsts = 2, rkey = 8,
        hostid = 16, rsvd32 = 32);
    assert_offsets!(nvme::reservation::RegisterKeys: crkey = 0, nrkey = 8);
    assert_offsets!(nvme::reservation::AcquireKeys: crkey = 0, prkey = 8);
    assert_offsets!(nvme::reservation::ReservationNotification: lpc = 0, rnlpt = 8, nalp = 9,
        nsid = 12, rsvd16 = 16);
}
