//! The start hook.
#![cfg_attr(
    not(test),
    allow(
        unsafe_code,
        reason = "the macro puts the hook where the dynamic linker calls it"
    )
)]

#[cfg(not(test))]
ctor::declarative::ctor! {
    /// Runs when the library is loaded, in every program. Does nothing unless a limit is asked for,
    /// or another library in front of this one has its names.
    #[ctor(unsafe)]
    fn start() {
        let _ = std::panic::catch_unwind(|| {
            super::door::take_the_front();
            crate::membership::at_start();
        });
    }
}
