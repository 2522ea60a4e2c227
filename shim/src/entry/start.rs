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
    /// Runs at the start of every program. Acts only if a limit is set or another library hides the
    /// hooks.
    #[ctor(unsafe)]
    fn start() {
        let _ = std::panic::catch_unwind(|| {
            super::door::take_place();
            super::door::keep_variables_at_start();
            crate::membership::at_start();
        });
    }
}
