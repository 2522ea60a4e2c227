//! Measures the time that it takes to read the code images of a shared library. Such libraries are
//! in the wheels of PyTorch and of NVIDIA's libraries.
//! Run: `cargo run --release -p gpulimit-benches --bin images -- FILE…`.

use gpulimit_fatbin::{FATBIN, length_of_fat_binary, needs_of_bytes};
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The compute capability of the GPU for which images are read: 9.0, an H100.
const CAPABILITY: u32 = 90;
/// Fat binaries in a file begin at a multiple of this many bytes.
const ALIGNMENT: usize = 8;
const HEADER: usize = 16;
const ROUNDS: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:>8} {:>12} {:>10} {:>10}  file",
        "images", "bytes", "all ms", "one µs"
    );
    for path in std::env::args().skip(1) {
        let file = std::fs::read(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
        let images = images(&file);
        let bytes: usize = images.iter().map(|image| image.len()).sum();
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let started = Instant::now();
            for image in &images {
                black_box(needs_of_bytes(image, &|| vec![CAPABILITY], &()));
            }
            best = best.min(started.elapsed());
        }
        println!(
            "{:>8} {bytes:>12} {:>10.1} {:>10.1}  {path}",
            images.len(),
            best.as_secs_f64() * 1e3,
            best.as_secs_f64() * 1e6 / images.len().max(1) as f64,
        );
    }
    Ok(())
}

/// Returns the fat binaries of a file.
fn images(file: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(header) = file.get(at..).and_then(|rest| rest.first_chunk::<HEADER>()) {
        let length = match header.starts_with(&FATBIN) {
            true => length_of_fat_binary(header),
            false => None,
        };
        let image = length.and_then(|length| file.get(at..at.checked_add(length)?));
        found.extend(image);
        at += image.map_or(ALIGNMENT, |image| image.len().next_multiple_of(ALIGNMENT));
    }
    found
}
