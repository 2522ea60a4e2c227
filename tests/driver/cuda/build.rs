//! Sets the soname and the symbol binding that the real libcuda has.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // With -Bsymbolic, calls that the driver makes to its own functions never pass through a
    // preloaded library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // With nodelete the library stays mapped until its exit handlers have run. Some C libraries do
    // this on their own for a library with thread-local variables, but not all C libraries do.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
