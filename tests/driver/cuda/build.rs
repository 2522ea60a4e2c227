//! The names and the binding of the real library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The driver's calls to itself never pass through a preloaded library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
