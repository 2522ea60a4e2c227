//! The names and the binding of the real library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The driver's calls to itself never pass through a preloaded library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // So that what it does at the process's exit is there then: not every C library keeps it for
    // its thread-local variables.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
