//! The fast path of kernel and graph launches: a tail jump to the driver on x86-64. On other
//! architectures the exported function looks up the handle in the same table and calls the driver.
//!
//! An ordinary function would push the eleven arguments of a launch once more. So the exported
//! functions for launches are naked functions. They look up the handle in the table of recent
//! launches, and use only registers that hold no argument. Then they jump to the driver's function
//! with all arguments in place. During the driver's call the stack then holds no frame of
//! `libgpulimit.so`. An ordinary function handles launches whose handle is not in the table, and
//! all launches before the driver's address is known.

/// The body of a naked exported function. `$handle` is the register that holds the handle,
/// `$others` the ordinary function, `$at` the index of the driver's function in `$addresses`. A
/// handle of 0 is equal to an empty place of the table. So a call with handle 0 goes to the driver,
/// which answers it.
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
