//! Takes GPU memory piece by piece, as any CUDA program does, and prints the result of each piece:
//! `fill [--insist] [--hold SECONDS] SIZE…`
//!
//! The program knows nothing of limits: the free memory and the refusals come from the driver,
//! through cudarc. Exits with 0 when it got all pieces, and with 1 when a piece was refused. With
//! `--insist` it tries again until it gets each piece.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, DriverError};
use gpulimit_base::units::{Size, gib};

const USAGE: &str = "usage: fill [--insist] [--hold SECONDS] SIZE...";

struct Options {
    insist: bool,
    hold: Duration,
    pieces: Vec<u64>,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        insist: false,
        hold: Duration::ZERO,
        pieces: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            "--insist" => options.insist = true,
            "--hold" => {
                let seconds = arguments.next().ok_or(USAGE)?;
                options.hold = Duration::try_from_secs_f64(seconds.parse()?)?;
            }
            size => match size.parse()? {
                Size::Bytes(bytes) => options.pieces.push(bytes),
                _ => return Err(USAGE.into()),
            },
        }
    }
    if options.pieces.is_empty() {
        return Err(USAGE.into());
    }
    Ok(options)
}

/// Returns whether the driver's answer is that it is out of memory.
fn is_out_of_memory(error: &DriverError) -> bool {
    error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

fn main() -> ExitCode {
    match fill() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("fill: {error}");
            ExitCode::from(2)
        }
    }
}

fn fill() -> Result<ExitCode, Box<dyn Error>> {
    let options = options()?;
    // Without a driver cudarc panics.
    std::panic::set_hook(Box::new(|_| {}));
    let context = std::panic::catch_unwind(|| CudaContext::new(0))
        .map_err(|_| "cannot load the NVIDIA driver (libcuda.so)")??;
    let _ = std::panic::take_hook();
    let (free, total) = context.mem_get_info()?;
    println!(
        "fill: the GPU has {}, free are {}",
        gib(total as u64),
        gib(free as u64)
    );
    let stream = context.default_stream();
    let mut pieces = Vec::new();
    let mut status = ExitCode::SUCCESS;
    for size in options.pieces {
        let mut told = false;
        let piece = loop {
            match stream.alloc_zeros::<u8>(size as usize) {
                Ok(piece) => break Some(piece),
                Err(error) if is_out_of_memory(&error) => {
                    if !told {
                        println!("fill: {} more: out of memory ({:?})", gib(size), error.0);
                        told = true;
                    }
                    if !options.insist {
                        break None;
                    }
                    std::thread::sleep(Duration::from_secs(1));
                }
                Err(error) => return Err(error.into()),
            }
        };
        match piece {
            Some(piece) => {
                println!("fill: {} more: got it", gib(size));
                pieces.push(piece);
            }
            None => status = ExitCode::FAILURE,
        }
    }
    std::thread::sleep(options.hold);
    Ok(status)
}
