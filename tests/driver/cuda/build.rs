//! Sets the soname and the symbol binding of the real library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // With -Bsymbolic the driver's calls of its own functions never pass through a preloaded
    // library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // With nodelete the library is still mapped when its exit handlers run: not every C library
    // keeps a library mapped for its thread-local variables.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
