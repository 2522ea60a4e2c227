//! Sets the soname and the symbol binding that the real libcuda has.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // With -Bsymbolic, calls that the driver makes to its own functions never pass through a
    // preloaded library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // With nodelete the library stays mapped until its exit handlers have run: not every C library
    // keeps a library mapped that has thread-local variables.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
