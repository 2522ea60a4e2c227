//! Sets the soname and the symbol binding that the real libcuda has.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // -Bsymbolic binds the library's calls of its own functions to itself. So a preloaded library
    // does not see these calls, as with the real driver.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // With nodelete the library stays mapped until its exit handlers have run. Some C libraries,
    // but not all, keep a library with thread-local variables mapped without this flag.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
