//! Exports with a body of their own on x86-64: the fast path of kernel and graph launches, a tail
//! jump to the driver, and functions that tools patch.
//!
//! An ordinary function would push the arguments of a launch once more. So the exported functions
//! are naked, and use only registers that hold no argument. They jump to the driver if the table of
//! recent launches has the handle. The stack then holds no frame of `libgpulimit.so`. An ordinary
//! function handles all other launches.

/// The body of a naked exported function. A handle of 0 equals an empty place of the table, so the
/// driver answers the call.
///
/// - `$handle`: the register that holds the handle.
/// - `$addresses`, `$at`: the list and the index of the driver's function.
/// - `$others`: the ordinary function.
macro_rules! pass {
    ($handle:ident, $addresses:path, $at:expr, $others:ident) => {
        std::arch::naked_asm!(
            "endbr64",
            concat!("mov rax, ", stringify!($handle)),
            "shr rax, {fold}",
            concat!("xor rax, ", stringify!($handle)),
            "movabs r10, {spread}",
            "imul rax, r10",
            "shr rax, {down}",
            "lea r10, [rip + {recent}]",
            concat!("cmp qword ptr [r10 + 8*rax], ", stringify!($handle)),
            "jne 2f",
            "mov rax, qword ptr [rip + {addresses} + {at}]",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            "jmp {others}",
            fold = const crate::account::launched::FOLD,
            spread = const crate::account::launched::SPREAD,
            down = const crate::account::launched::DOWN,
            recent = sym crate::account::launched::RECENT,
            addresses = sym $addresses,
            at = const 8 * ($at),
            others = sym $others,
        )
    };
}
pub(crate) use pass;

/// The body of a naked exported function that tools patch: 15 bytes of instructions that every tool
/// can move elsewhere, as in the driver's functions. Then jumps to the function `$others`.
macro_rules! movable {
    ($others:ident) => {
        std::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "mov eax, 0",
            "pop rbp",
            "mov eax, 0",
            "jmp {others}",
            others = sym $others,
        )
    };
}
pub(crate) use movable;
