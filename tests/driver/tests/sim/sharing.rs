//! Allocations that other processes import.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use crate::rig::{CONTEXT, Cuda, MIB, Machine, alone, eventually, expect_line, role};

const SIZE: u64 = 4 * MIB;

/// `CUmemAllocationProp` of pinned memory on the first GPU, to be exported as a file descriptor.
fn properties(kind: u8) -> [u8; 32] {
    let mut bytes = [0; 32];
    (bytes[0], bytes[4], bytes[8]) = (1, kind, 1);
    bytes
}

fn create(cuda: &Cuda, kind: u8) -> usize {
    let properties = properties(kind);
    let arguments = [SIZE as usize, properties.as_ptr() as usize, 0];
    cuda.get("cuMemCreate", &arguments).expect("memory") as usize
}

fn export(cuda: &Cuda, handle: usize) -> Result<i32, i32> {
    let mut descriptor = -1i32;
    let arguments = [&raw mut descriptor as usize, handle, 1, 0];
    match cuda.call("cuMemExportToShareableHandle", &arguments) {
        0 => Ok(descriptor),
        error => Err(error),
    }
}

fn close(descriptor: i32) {
    // SAFETY: a descriptor that the driver gave us.
    assert_eq!(unsafe { libc::close(descriptor) }, 0);
}

#[test]
fn with_oneself() {
    alone(&[], |cuda| {
        cuda.start();
        let plain = create(cuda, 0);
        assert_eq!(export(cuda, plain), Err(1), "not made for it");
        assert_eq!(cuda.call("cuMemRelease", &[plain]), 0);
        let handle = create(cuda, 1);
        let descriptor = export(cuda, handle).expect("a descriptor");
        let again = cuda
            .get("cuMemImportFromShareableHandle", &[descriptor as usize, 1])
            .expect("a handle") as usize;
        let mut told = [0u8; 32];
        let arguments = [told.as_mut_ptr() as usize, again];
        let name = "cuMemGetAllocationPropertiesFromHandle";
        assert_eq!(cuda.call(name, &arguments), 0);
        assert_eq!(told, properties(1));
        assert_eq!(cuda.beyond(), SIZE);
        assert_eq!(cuda.call("cuMemRelease", &[again]), 0);
        assert_eq!(cuda.beyond(), SIZE);
        close(descriptor);
        assert_eq!(cuda.call("cuMemRelease", &[handle]), 0);
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(
            cuda.get("cuMemImportFromShareableHandle", &[0, 1]),
            Err(1),
            "not one of ours"
        );
    });
}

#[test]
fn with_another_process() {
    match role().as_deref() {
        Some("export") => {
            let cuda = Cuda::load();
            cuda.start();
            let handle = create(&cuda, 1);
            println!("exported {}", export(&cuda, handle).expect("a descriptor"));
            std::io::stdout().flush().expect("flushed");
            // The importer has it.
            let mut line = [0];
            std::io::stdin().read_exact(&mut line).expect("a word");
            assert_eq!(cuda.call("cuMemRelease", &[handle]), 0);
            assert_eq!(cuda.call("cuMemRelease", &[handle]), 1);
            println!("released");
            std::io::stdin().read_exact(&mut line).expect("a word");
            let other = create(&cuda, 0);
            assert_eq!(cuda.call("cuMemRelease", &[other]), 0);
            println!("looked");
            crate::rig::wait_for_close();
            return;
        }
        Some(descriptor) => {
            let cuda = Cuda::load();
            cuda.start();
            let file = std::fs::File::options()
                .read(true)
                .write(true)
                .open(descriptor)
                .expect("the exporter's descriptor");
            let handle = cuda
                .get(
                    "cuMemImportFromShareableHandle",
                    &[file.as_raw_fd() as usize, 1],
                )
                .expect("a handle") as usize;
            drop(file);
            let address = cuda
                .get("cuMemAddressReserve", &[SIZE as usize, 0, 0, 0])
                .expect("addresses") as usize;
            let at = [address, SIZE as usize, 0, handle, 0];
            assert_eq!(cuda.call("cuMemMap", &at), 0);
            assert_eq!(cuda.call("cuMemRelease", &[handle]), 0);
            println!("imported");
            crate::rig::wait_for_close();
            assert_eq!(cuda.call("cuMemUnmap", &[address, SIZE as usize]), 0);
            println!("unmapped");
            return;
        }
        None => {}
    }
    let machine = Machine::new(&[]);
    let mut exporter = machine.spawn("export");
    let line = expect_line(&mut exporter, "exported");
    let number = line.split(' ').nth(1).expect("a number");
    let path = format!("/proc/{}/fd/{number}", exporter.id());
    let mut importer = machine.spawn(&path);
    expect_line(&mut importer, "imported");
    let both = 2 * CONTEXT + SIZE;
    assert_eq!(machine.used(), both, "charged once");
    assert_eq!(holds(&machine, exporter.id()), CONTEXT + SIZE);
    let mut say = |word: &[u8]| {
        let input = exporter.stdin.as_mut().expect("piped");
        input.write_all(word).expect("said");
    };
    say(b"1");
    // The exporter closes nothing here: its descriptor is still open, too.
    drop(importer.stdin.take());
    expect_line(&mut importer, "unmapped");
    assert!(importer.wait().expect("gone").success());
    assert!(eventually(|| machine.used() == CONTEXT + SIZE));
    say(b"2");
    expect_line(&mut exporter, "looked");
    assert_eq!(machine.used(), CONTEXT + SIZE, "the descriptor holds it");
    drop(exporter.stdin.take());
    assert!(exporter.wait().expect("gone").success());
    assert!(eventually(|| machine.used() == 0));
}

fn holds(machine: &Machine, pid: u32) -> u64 {
    let usage = machine.usage();
    let word = format!("\"pid\":{pid},\"bytes\":");
    let start = usage.find(&word).expect("the process") + word.len();
    let digits = usage[start..].chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().expect("a number")
}
