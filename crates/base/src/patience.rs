//! How long gpulimit waits for what may never happen.

use std::time::Duration;

/// Returns the time after which gpulimit gives up a wait: `usual`. Tests need not wait that long:
/// in builds with `debug_assertions`, and in no others, this environment variable sets another
/// number of milliseconds.
///
/// # Panics
/// In such a build, if the variable's value is not a number.
#[inline(always)]
#[cfg_attr(not(debug_assertions), expect(unused_variables))]
pub fn of(variable: &str, usual: Duration) -> Duration {
    #[cfg(debug_assertions)]
    if let Some(text) = std::env::var_os(variable) {
        let number = text.to_str().and_then(|text| text.parse().ok());
        return Duration::from_millis(number.unwrap_or_else(|| panic!("{variable}={text:?}")));
    }
    usual
}
