//! Tests of the data that simulated files keep.

use super::*;

fn open(path: &str) -> File {
    let options = OpenOptions { create: true, direct: true, ..OpenOptions::READ_WRITE };
    File::open(path, options).unwrap()
}

/// Goal: kill -9 keeps written bytes. Power loss keeps flushed bytes; over many seeds it keeps,
/// loses and tears unflushed ones.
#[test]
fn power_loss_spares_what_was_flushed() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let Cluster { mut simulation, server, .. } = cluster(seed);
        let survivors = simulation
            .run(async move {
                let writer = server.spawn(async {
                    let file = open("/device");
                    file.write_at(Buffer::copy_from(&[1; 8192]), 0).await.0.unwrap();
                    file.sync_data().await.unwrap();
                    file.write_at(Buffer::copy_from(&[2; 4096]), 4096).await.0.unwrap();
                });
                writer.await.unwrap();
                server.kill();
                let read = || async {
                    let file = open("/device");
                    let (n, buffer) = file.read_at(Buffer::with_capacity(8192), 0..8192, 0).await;
                    assert_eq!(n.unwrap(), 8192);
                    buffer
                };
                let after_kill = server.spawn(read()).await.unwrap();
                assert!(after_kill[4096..].iter().all(|&b| b == 2));
                server.lose_power();
                server.spawn(read()).await.unwrap()
            })
            .unwrap();
        assert!(survivors[..4096].iter().all(|&b| b == 1));
        match survivors[4096..].iter().map(|&b| usize::from(b == 2)).sum() {
            0_usize => lost += 1,
            4096 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(kept > 20 && lost > 20 && torn > 20, "{kept} kept, {lost} lost, {torn} torn");
}

/// Goal: a file has one lock holder, and a killed node's lock is free again.
#[test]
fn locks_end_with_their_holder() {
    let Cluster { mut simulation, server, .. } = cluster(9);
    simulation
        .run(async move {
            server.spawn(async {
                let file = open("/device");
                file.try_lock_exclusive().unwrap();
                std::future::pending::<()>().await;
                drop(file);
            });
            time::sleep(Duration::from_millis(1)).await;
            let try_lock = || async { open("/device").try_lock_exclusive() };
            let refused = server.spawn(try_lock()).await.unwrap().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
            server.kill();
            server.spawn(try_lock()).await.unwrap().unwrap();
        })
        .unwrap();
}

/// Goal: a flush covers writes that were acknowledged before it, not those in flight beside it.
#[test]
fn flushes_cover_what_was_acknowledged() {
    let mut lost = 0;
    for seed in 0..60 {
        let Cluster { mut simulation, server, .. } = cluster(seed);
        let survivor = simulation
            .run(async move {
                let writer = server.spawn(async {
                    let file = open("/device");
                    file.set_size(4096).unwrap();
                    let write = file.write_at(Buffer::copy_from(&[2; 512]), 0);
                    let flush = file.sync_data();
                    write.await.0.unwrap();
                    flush.await.unwrap();
                });
                writer.await.unwrap();
                server.lose_power();
                let reader = server.spawn(async {
                    open("/device").read_at(Buffer::with_capacity(512), 0..512, 0).await.1
                });
                reader.await.unwrap()
            })
            .unwrap();
        lost += usize::from(survivor[0] == 0);
    }
    assert!(lost > 10 && lost < 50, "{lost} of 60 lost");
}

/// Goal: a full disk refuses only writes, a broken one the configured operations; refused
/// operations have no effect, and both disks work again after the fault is removed.
#[test]
fn full_and_broken_disks_refuse() {
    let Cluster { mut simulation, server, .. } = cluster(1);
    simulation
        .run(async move {
            let write = |byte: u8| async move {
                open("/device").write_at(Buffer::copy_from(&[byte; 4096]), 0).await.0
            };
            let read = || async {
                let (n, buffer) = open("/device").read_at(Buffer::with_capacity(1), 0..1, 0).await;
                n.map(|_| buffer[0])
            };
            server.spawn(write(1)).await.unwrap().unwrap();
            let full = DiskFault { write: Some(DiskError::Full), ..DiskFault::default() };
            server.set_disk_fault(full);
            let refused = server.spawn(write(2)).await.unwrap().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
            assert_eq!(server.spawn(read()).await.unwrap().unwrap(), 1);
            let broken = Some(DiskError::Broken);
            server.set_disk_fault(DiskFault { read: broken, sync: broken, ..DiskFault::default() });
            assert!(server.spawn(read()).await.unwrap().is_err());
            assert!(
                server.spawn(async { open("/device").sync_all().await }).await.unwrap().is_err()
            );
            server.set_disk_fault(DiskFault::default());
            server.spawn(write(3)).await.unwrap().unwrap();
            assert_eq!(server.spawn(read()).await.unwrap().unwrap(), 3);
        })
        .unwrap();
}

/// Goal: data that a failed flush has forgotten can be read until power is lost, and is gone then,
/// even if a later flush succeeded.
#[test]
fn a_failed_flush_can_forget() {
    let Cluster { mut simulation, server, .. } = cluster(1);
    simulation
        .run(async move {
            let write = |at: u64, byte: u8| async move {
                open("/device").write_at(Buffer::copy_from(&[byte; 4096]), at).await.0.unwrap();
            };
            let read = |at: u64| async move {
                let buffer = Buffer::with_capacity(1);
                let (n, buffer) = open("/device").read_at(buffer, 0..1, at).await;
                n.map(|_| buffer[0]).unwrap()
            };
            let sync = || async { open("/device").sync_all().await };
            server.spawn(write(0, 1)).await.unwrap();
            server.spawn(sync()).await.unwrap().unwrap();
            server.spawn(write(0, 2)).await.unwrap();
            let broken = Some(DiskError::Broken);
            let forgetting = DiskFault { sync: broken, forgets: true, ..DiskFault::default() };
            server.set_disk_fault(forgetting);
            assert!(server.spawn(sync()).await.unwrap().is_err());
            server.set_disk_fault(DiskFault::default());
            server.spawn(write(4096, 3)).await.unwrap();
            server.spawn(sync()).await.unwrap().unwrap();
            assert_eq!(server.spawn(read(0)).await.unwrap(), 2);
            server.lose_power();
            let after = server.spawn(async move { (read(0).await, read(4096).await) });
            assert_eq!(after.await.unwrap(), (1, 3));
        })
        .unwrap();
}

/// Goal: bits flip on the way to the reader, one in a read and as often as configured, and the data
/// on the disk stays.
#[test]
fn bits_flip_on_the_way() {
    let Cluster { mut simulation, server, .. } = cluster(1);
    simulation
        .run(async move {
            let write =
                async { open("/device").write_at(Buffer::copy_from(&[7; 4096]), 0).await.0 };
            // Returns how many bits of a read are wrong.
            let wrong = || async {
                let buffer = Buffer::with_capacity(4096);
                let (n, buffer) = open("/device").read_at(buffer, 0..4096, 0).await;
                assert_eq!(n.unwrap(), 4096);
                buffer.iter().map(|byte| (byte ^ 7).count_ones()).sum::<u32>()
            };
            server.spawn(write).await.unwrap().unwrap();
            for (flips_percent, least, most) in [(0, 0, 0), (30, 5, 40), (100, 60, 60)] {
                server.set_disk_fault(DiskFault { flips_percent, ..DiskFault::default() });
                let mut flipped = 0;
                for _ in 0..60 {
                    let wrong = server.spawn(wrong()).await.unwrap();
                    assert!(wrong <= 1, "{wrong} bits of one read");
                    flipped += wrong;
                }
                assert!((least..=most).contains(&flipped), "{flipped} of 60 at {flips_percent} %");
            }
            server.set_disk_fault(DiskFault::default());
            assert_eq!(server.spawn(wrong()).await.unwrap(), 0);
        })
        .unwrap();
}
