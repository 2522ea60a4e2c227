#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gpulimit_fuzz_targets::target("ledger")(bytes));
