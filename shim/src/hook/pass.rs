//! The way of a launch that is known: a tail jump. On x86-64; elsewhere a call after the same look.
//!
//! A function of ours that calls the driver's would push its eleven arguments once more. So the
//! exports of launches are naked: they look for the handle among those seen launched, with
//! registers that no argument is in, and jump on to the driver's function with everything as it
//! came. No frame of ours is on the stack then. Whatever is not known, or before the driver's
//! address is, goes to the ordinary function.

/// The body of a naked export: `$handle` is the register of the handle, `$others` the ordinary
/// function, `$at` the place of the driver's address in `$addresses`. A handle of 0 finds an empty
/// place, and gets the driver's answer.
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
