//! Sets the soname and the symbol binding that the real libcuda has.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // As in the real driver, the library's calls to its own functions do not reach a preloaded
    // library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // With nodelete the library stays mapped until its exit handlers have run. Without nodelete,
    // some implementations of libc unmap the library earlier.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
