//! The start hook: runs when the dynamic linker loads `libgpulimit.so`.
#![cfg_attr(
    not(test),
    allow(
        unsafe_code,
        reason = "the macro puts the start hook among the functions that the dynamic linker calls"
    )
)]

#[cfg(not(test))]
ctor::declarative::ctor! {
    /// Runs when `libgpulimit.so` is loaded, in every program. Has an effect only in two cases: the
    /// environment asks for a limit, or a library that the dynamic linker searches before
    /// `libgpulimit.so` defines the same names.
    #[ctor(unsafe)]
    fn start() {
        let _ = std::panic::catch_unwind(|| {
            super::door::take_precedence();
            crate::membership::at_start();
        });
    }
}
