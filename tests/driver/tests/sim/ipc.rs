//! Tests of linear memory that other processes open by an IPC handle.

use gpulimit_sim::ipc::Handle;

use crate::rig::{CONTEXT, Cuda, MIB, Machine, alone, eventually, expect_line, role};
use crate::sharing::{holds, say, serve};

const SIZE: u64 = 4 * MIB;

fn export(cuda: &Cuda, address: u64) -> Result<Handle, i32> {
    let mut handle = Handle([0; 8]);
    let place = (&raw mut handle) as usize;
    match cuda.call("cuIpcGetMemHandle", &[place, address as usize]) {
        0 => Ok(handle),
        error => Err(error),
    }
}

fn open(cuda: &Cuda, name: &str, handle: Handle, flags: u32) -> Result<u64, i32> {
    // SAFETY: the driver's function has this signature in its header.
    let function: extern "C" fn(*mut u64, Handle, u32) -> i32 =
        unsafe { std::mem::transmute(cuda.find(name)) };
    let mut address = 0;
    match function(&mut address, handle, flags) {
        0 => Ok(address),
        error => Err(error),
    }
}

fn close(cuda: &Cuda, address: u64) -> i32 {
    cuda.call("cuIpcCloseMemHandle", &[address as usize])
}

#[test]
fn invalid_exports_and_opens_are_refused() {
    alone(&[], |cuda| {
        cuda.start();
        let mut memory = cuda.alloc(SIZE).expect("memory");
        let handle = export(cuda, memory).expect("a handle");
        for name in ["cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"] {
            assert_eq!(
                open(cuda, name, handle, 1),
                Err(201),
                "the exporter cannot open its own memory"
            );
            assert_eq!(open(cuda, name, handle, 0), Err(1), "the call needs a flag");
            assert_eq!(open(cuda, name, Handle([7; 8]), 1), Err(1), "not a handle");
        }
        assert_eq!(close(cuda, memory), 1);
        assert_eq!(export(cuda, 5).err(), Some(1));
        let place = (&raw mut memory) as usize;
        assert_eq!(cuda.call("cuIpcGetMemHandle", &[0, place]), 1);
        assert_eq!(cuda.beyond(), SIZE);
        assert_eq!(cuda.free(memory), 0);
        assert_eq!(cuda.beyond(), 0);
        assert_eq!(
            open(cuda, "cuIpcOpenMemHandle", handle, 1),
            Err(1),
            "the owner has freed the memory"
        );
        let managed = cuda.get("cuMemAllocManaged", &[SIZE as usize, 1]);
        let pooled = cuda.get("cuMemAllocAsync", &[SIZE as usize, 0]);
        for address in [managed, pooled] {
            assert_eq!(export(cuda, address.expect("memory")).err(), Some(1));
        }
    });
}

/// A child process, which takes letters on its standard input as commands. `path` is the file of
/// the IPC handle.
fn told(path: &str) {
    let cuda = Cuda::load();
    cuda.start();
    let (mut memory, mut opened) = (0, 0);
    serve(|letter| {
        match letter {
            letter @ (b'a' | b's') => {
                let bytes = if letter == b'a' { SIZE } else { SIZE / 8 };
                memory = cuda.alloc(bytes).expect("memory");
                let Handle(words) = export(&cuda, memory).expect("a handle");
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                std::fs::write(path, bytes).expect("written");
            }
            b'f' => assert_eq!(cuda.free(memory), 0),
            b'o' => {
                let bytes = std::fs::read(path).expect("a handle");
                let mut words = [0; 8];
                for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                    *word = u64::from_le_bytes(bytes.try_into().expect("eight"));
                }
                let address = open(&cuda, "cuIpcOpenMemHandle_v2", Handle(words), 1);
                let address = address.expect("open");
                assert!(
                    opened == 0 || opened == address,
                    "a second open returns the same address"
                );
                opened = address;
                assert_eq!(cuda.free(opened), 1, "cuMemFree cannot free opened memory");
                let mut device = 7;
                let place = (&raw mut device) as usize;
                let arguments = [place, 9, opened as usize];
                assert_eq!(cuda.call("cuPointerGetAttribute", &arguments), 0);
                assert_eq!(device, 0);
            }
            b'c' => {
                assert_eq!(close(&cuda, opened), 0);
            }
            b'g' => {
                assert_eq!(close(&cuda, opened), 0);
                assert_eq!(close(&cuda, opened), 1, "the memory is already closed");
                opened = 0;
            }
            b'r' => {
                assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), 0);
                cuda.start();
                opened = 0;
            }
            _ => panic!("{letter}"),
        }
        opened
    });
}

#[test]
fn opened_memory_counts_for_its_owner_and_then_for_its_opener() {
    if let Some(role) = role() {
        return told(&role);
    }
    let machine = Machine::new(&[]);
    let path = machine.at("handle");
    let role = path.display().to_string();
    let [mut owner, mut opener] = [(); 2].map(|()| {
        let mut child = machine.spawn(&role);
        expect_line(&mut child, "ready");
        child
    });
    let two = 2 * CONTEXT;
    let held =
        |of: [&std::process::Child; 2]| of.map(|child| holds(&machine, child.id()) - CONTEXT);
    for (letter, size) in [("a", SIZE), ("s", 2 * MIB)] {
        say(&mut owner, letter);
        say(&mut opener, "oo");
        assert_eq!(held([&owner, &opener]), [size, 0]);
        say(&mut owner, "f");
        assert_eq!(held([&owner, &opener]), [0, size]);
        assert_eq!(machine.used(), two + size);
        say(&mut opener, "c");
        assert_eq!(held([&owner, &opener]), [0, size], "one open is left");
        say(&mut opener, "g");
        assert_eq!(machine.used(), two);
        say(&mut owner, letter);
        say(&mut opener, "og");
        assert_eq!(held([&owner, &opener]), [size, 0]);
        say(&mut owner, "f");
        assert_eq!(machine.used(), two);
    }
    assert_eq!(
        machine.number("peak"),
        two + SIZE,
        "no peak counts shared memory twice"
    );
    // Destroying the owner's context frees the memory. Destroying the context of the process that
    // opened the memory closes the memory.
    say(&mut owner, "a");
    say(&mut opener, "or");
    assert_eq!(held([&owner, &opener]), [SIZE, 0]);
    say(&mut opener, "o");
    say(&mut owner, "r");
    assert_eq!(held([&owner, &opener]), [0, SIZE]);
    say(&mut opener, "r");
    assert_eq!(machine.used(), two);
    // A killed owner's memory is freed after the time that the knob `kill-lag-ms` sets.
    say(&mut owner, "a");
    say(&mut opener, "o");
    drop(owner);
    assert!(eventually(|| machine.used() == CONTEXT + SIZE));
    assert_eq!(holds(&machine, opener.id()), CONTEXT + SIZE);
    say(&mut opener, "g");
    assert_eq!(machine.used(), CONTEXT);
    drop(opener);
    let _ = std::fs::remove_file(path);
}
