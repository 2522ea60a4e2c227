//! Tests of allocations that other processes import through file descriptors.

use std::fmt::Display;
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::process::Child;

use gpulimit_support::Running;

use crate::rig::{CONTEXT, Cuda, MIB, Machine, alone, eventually, expect_line, role};

const SIZE: u64 = 4 * MIB;

/// Returns the `CUmemAllocationProp` of pinned memory on the first GPU. With `kind` 1 the memory
/// can be exported as a file descriptor.
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

fn import(cuda: &Cuda, descriptor: i32) -> usize {
    let arguments = [descriptor as usize, 1];
    let handle = cuda.get("cuMemImportFromShareableHandle", &arguments);
    handle.expect("a handle") as usize
}

fn close(descriptor: i32) {
    // SAFETY: the descriptor came from the driver, and the test is its only user.
    assert_eq!(unsafe { libc::close(descriptor) }, 0);
}

#[test]
fn a_process_can_import_its_own_export() {
    alone(&[], |cuda| {
        cuda.start();
        let plain = create(cuda, 0);
        assert_eq!(export(cuda, plain), Err(1), "the memory is not exportable");
        assert_eq!(cuda.call("cuMemRelease", &[plain]), 0);
        let handle = create(cuda, 1);
        let descriptor = export(cuda, handle).expect("a descriptor");
        let again = import(cuda, descriptor);
        assert_ne!(handle, again);
        assert_eq!(export(cuda, again), Err(1), "imports cannot be exported");
        let mut told = [0u8; 32];
        let arguments = [told.as_mut_ptr() as usize, again];
        let name = "cuMemGetAllocationPropertiesFromHandle";
        assert_eq!(cuda.call(name, &arguments), 0);
        assert_eq!(told, properties(1));
        assert_eq!(cuda.beyond(), SIZE);
        assert_eq!(cuda.call("cuMemRelease", &[handle]), 0);
        assert_eq!(cuda.call("cuMemRelease", &[again]), 0);
        assert_eq!(cuda.beyond(), SIZE, "a descriptor keeps the memory");
        let again = import(cuda, descriptor);
        close(descriptor);
        assert_eq!(cuda.beyond(), SIZE, "the import keeps the memory");
        assert_eq!(cuda.call("cuMemRelease", &[again]), 0);
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(
            cuda.get("cuMemImportFromShareableHandle", &[0, 1]),
            Err(1),
            "the descriptor is not an exported allocation"
        );
    });
}

/// A child process, which takes letters on its standard input as commands. `role` is "export", or
/// the descriptor's path.
fn told(role: &str) {
    let cuda = Cuda::load();
    cuda.start();
    let mut descriptor = -1;
    let mut handle = 0;
    let mut address = 0;
    if role != "export" {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(role)
            .expect("the exporter's descriptor");
        descriptor = file.into_raw_fd();
    }
    serve(|letter| {
        match letter {
            b'e' => {
                handle = create(&cuda, 1);
                descriptor = export(&cuda, handle).expect("a descriptor");
            }
            b'i' => handle = import(&cuda, descriptor),
            b'c' => close(descriptor),
            b'r' => assert_eq!(cuda.call("cuMemRelease", &[handle]), 0),
            b'm' => {
                let range = cuda.get("cuMemAddressReserve", &[SIZE as usize, 0, 0, 0]);
                address = range.expect("addresses") as usize;
                let at = [address, SIZE as usize, 0, handle, 0];
                assert_eq!(cuda.call("cuMemMap", &at), 0);
            }
            b'u' => assert_eq!(cuda.call("cuMemUnmap", &[address, SIZE as usize]), 0),
            _ => panic!("{letter}"),
        }
        descriptor
    });
}

/// Prints "ready". Then calls `obey` for each letter on standard input and prints "done" with the
/// result.
pub fn serve<T: Display>(mut obey: impl FnMut(u8) -> T) {
    println!("ready");
    let mut letter = [0];
    while std::io::stdin().read(&mut letter).expect("readable") == 1 {
        println!("done {}", obey(letter[0]));
    }
}

pub fn say(child: &mut Child, letters: &str) -> String {
    let mut line = String::new();
    for letter in letters.bytes() {
        let input = child.stdin.as_mut().expect("piped");
        input.write_all(&[letter]).expect("said");
        line = expect_line(child, "done");
    }
    line
}

/// Starts an exporter of memory, and `others` processes that open the exporter's descriptor.
fn exported(machine: &Machine, others: usize) -> (Running, Vec<Running>) {
    let mut exporter = machine.spawn("export");
    let line = say(&mut exporter, "e");
    let number = line.split(' ').nth(1).expect("a number");
    let path = format!("/proc/{}/fd/{number}", exporter.id());
    let importer = |_| {
        let mut child = machine.spawn(&path);
        expect_line(&mut child, "ready");
        child
    };
    (exporter, (0..others).map(importer).collect())
}

#[test]
fn exported_memory_counts_for_its_exporter_or_its_only_importer() {
    if let Some(role) = role() {
        return told(&role);
    }
    let machine = Machine::new(&[]);
    let (mut exporter, mut others) = exported(&machine, 2);
    let [first, second] = others.as_mut_slice() else {
        panic!("two");
    };
    let holds = |child: &Running| holds(&machine, child.id()) - CONTEXT;
    let three = 3 * CONTEXT;
    say(first, "imr");
    say(second, "i");
    assert_eq!(machine.used(), three + SIZE, "shared memory counts once");
    let held = [&exporter, first, second].map(holds);
    assert_eq!(held, [SIZE, 0, 0], "the memory counts for the exporter");
    say(&mut exporter, "r");
    let held = [&exporter, first, second].map(holds);
    assert_eq!(
        held,
        [0, 0, 0],
        "with an open descriptor the memory counts for no process"
    );
    assert_eq!(machine.used(), three + SIZE);
    say(&mut exporter, "c");
    assert_eq!(
        [&exporter, first, second].map(holds),
        [0, 0, 0],
        "with two importers the memory counts for no process"
    );
    say(second, "r");
    assert_eq!([&exporter, first, second].map(holds), [0, SIZE, 0]);
    say(first, "u");
    assert_eq!(machine.used(), three);
    assert_eq!(
        machine.number("peak"),
        three + SIZE,
        "no peak counts shared memory twice"
    );
    say(&mut exporter, "eri");
    assert_eq!(holds(&exporter), 0, "the exporter has a descriptor open");
    say(&mut exporter, "c");
    assert_eq!(holds(&exporter), SIZE);
    say(&mut exporter, "r");
    assert_eq!(machine.used(), three);
    say(&mut exporter, "erc");
    assert!(
        eventually(|| machine.used() == three),
        "closing the last descriptor frees the memory"
    );
    drop((exporter, others));
}

#[test]
fn memory_of_a_dead_exporter_counts_for_its_importer() {
    if let Some(role) = role() {
        return told(&role);
    }
    let machine = Machine::new(&[]);
    let (exporter, mut others) = exported(&machine, 1);
    let mut importer = others.remove(0);
    say(&mut importer, "im");
    let dead = exporter.id();
    drop(exporter);
    assert_eq!(
        holds(&machine, dead),
        CONTEXT + SIZE,
        "at first the memory counts for the dead exporter"
    );
    assert!(eventually(|| machine.used() == CONTEXT + SIZE));
    assert_eq!(holds(&machine, importer.id()), CONTEXT + SIZE);
    drop(importer);
    assert!(eventually(|| machine.used() == 0));
    assert!(machine.number("peak") == 2 * CONTEXT + SIZE);
}

pub fn holds(machine: &Machine, pid: u32) -> u64 {
    let usage = machine.usage();
    let word = format!("\"pid\":{pid},\"bytes\":");
    let start = usage.find(&word).expect("the process") + word.len();
    let digits = usage[start..].chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().expect("a number")
}
